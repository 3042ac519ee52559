"""Builds the oracle of a Triton kernel, in a builder child, where its code may do nothing."""

from ..codegen.backend import CompiledKernel
from ..core.errors import TilewrightError
from ..core.trial import Failed
from ..schedule.gpu.triton import CUDA_TRITON
from ..schedule.space.space import Space
from ..te.json import workload_from_json
from ..te.triton import TritonWorkload
from ..te.triton_json import KIND
from .builder_supervisor import BuilderSupervisor
from .child_supervisor import WorkerSpec
from .oracle import Oracle
from .wire import Json


class OracleFailed(TilewrightError):
    """There is nothing that the results of a Triton kernel can be compared with."""

    code = "ORACLE_FAILED"


class OracleBuilder:
    """Remembers the oracle of the workload that was asked for last, or why it has none. It starts a child only where
    there is a Triton kernel. ``interrupt`` may come from any thread."""

    def __init__(self, spec: WorkerSpec) -> None:
        self._spec = spec
        self._builder = BuilderSupervisor(spec)
        self._workload: Json | None = None
        self._found: Oracle | OracleFailed | None = None

    def of(self, workload: Json) -> Oracle | None:
        """Return the oracle of a workload; None for one that is no Triton kernel. Raises OracleFailed, and WorkerLost
        as ``BuilderSupervisor.build`` does."""
        if workload.get("kind") != KIND:
            return None
        if self._workload != workload:
            self._found = self._built(workload)
            self._workload = workload
        if isinstance(self._found, OracleFailed):
            raise self._found
        return self._found

    def refused(self, reason: str) -> OracleFailed:
        """Remember that the oracle cannot be launched, and return the error to raise."""
        self._found = OracleFailed(f"the configuration that results are compared with cannot be launched: {reason}")
        return self._found

    def interrupt(self) -> None:
        self._builder.interrupt()

    def resume(self) -> None:
        self._builder.resume()

    def close(self) -> None:
        self._builder.close()

    def _built(self, workload: Json) -> Oracle | OracleFailed:
        """Build one configuration after another, in their order, until one can be built."""
        kernel = workload_from_json(workload)
        assert isinstance(kernel, TritonWorkload)
        space = CUDA_TRITON.space(kernel, self._spec.target)
        try:
            return self._first(workload, space)
        finally:
            self._builder.close()  # it is needed once for each workload

    def _first(self, workload: Json, space: Space) -> Oracle | OracleFailed:
        reason = ""
        for number in range(len(space)):
            result = self._builder.build(workload, space.schedule(number).to_json()).result
            if isinstance(result, CompiledKernel):
                return Oracle(result, number)
            assert isinstance(result, Failed)
            reason = reason or result.detail
        return OracleFailed(f"no configuration can be built, so that there is nothing to compare with: {reason}")
