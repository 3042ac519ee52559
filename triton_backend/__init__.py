"""``tilewright.triton.autotune``: a drop-in for ``triton.autotune`` that asks a service first.

``source`` makes a module's text of a kernel, ``call`` makes the workload of a call, ``service`` asks, and ``tuner`` is
what the decorator returns. The package is known as ``tilewright.triton`` too. It has another name here because a folder
``triton`` in the root of a checkout would hide Triton itself from programs that are run there.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

__all__ = ["autotune"]


def autotune(
    configs: Sequence[Any],
    key: Sequence[str],
    prune_configs_by: Mapping[str, Any] | None = None,
    reset_to_zero: Sequence[str] | None = None,
    restore_value: Sequence[str] | None = None,
    pre_hook: Callable[..., Any] | None = None,
    post_hook: Callable[..., Any] | None = None,
    warmup: int | None = None,
    rep: int | None = None,
    use_cuda_graph: bool = False,
    do_bench: Callable[..., Any] | None = None,
    cache_results: bool = False,
    *,
    service: str | None = None,
    target: str | None = None,
    submit: bool = True,
    meanwhile: str = "autotune",
    writes: Sequence[str] = (),
    ranges: Mapping[str, tuple[int, int]] | None = None,
) -> Callable[[Any], Any]:
    """Decorate a function under ``triton.jit`` as ``triton.autotune`` does. The arguments up to ``cache_results`` mean
    what they mean there; ``warmup``, ``rep`` and ``use_cuda_graph`` are ignored.

    At the first call of a key the service is asked for the best configuration. What it does not know becomes a job, and
    the configuration is exchanged once the job has ended. Where the service cannot help, Triton's own autotuning does,
    and the log says why, once for each kernel.

    service: Its address; by default the setting ``url`` (TILEWRIGHT_URL). Without one nobody is asked.
    target: The class of devices that the answer is for, such as ``cuda:sm_90a``; by default this process's device.
    submit: Whether what is not known becomes a job, which needs the scope ``submit`` and a service that accepts code.
    meanwhile: What runs until the job has ended: ``autotune``, Triton's own choice, or ``first``, the first
        configuration, which nothing is measured for here.
    writes: Further pointers that the kernel writes, where its source does not show that.
    ranges: The least and the greatest of the whole numbers that pointers hold, such as the rows of a table. Data for
        measurements are drawn from them; without a range, whole numbers of 32 bits and more are 0.

    Raises InvalidParameter for another ``meanwhile``, and ImportError where Triton is not installed.
    """
    from .tuner import AutotuneOptions, ServiceAutotuner  # it imports Triton

    options = AutotuneOptions(service, target, submit, meanwhile, tuple(writes), dict(ranges or {}))

    later: dict[str, Any] = {}  # versions of Triton before 3.4 do not have these
    later |= {} if do_bench is None else {"do_bench": do_bench}
    later |= {"cache_results": True} if cache_results else {}

    def decorator(function: Any) -> Any:
        return ServiceAutotuner(
            function,
            function.arg_names,
            configs,
            key,
            reset_to_zero,
            restore_value,
            pre_hook=pre_hook,
            post_hook=post_hook,
            prune_configs_by=None if prune_configs_by is None else dict(prune_configs_by),
            options=options,
            **later,
        )

    return decorator
