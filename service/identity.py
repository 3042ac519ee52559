"""Says what this machine is: the identity parts of what is measured on one of its devices."""

from dataclasses import dataclass

from ..core.record import MeasuredOn
from ..core.target import Profile
from .targets import measured_on, parse_device


@dataclass(frozen=True, slots=True)
class LocalIdentity:
    """Holds the identity parts of a machine. The keys are None where it has no device. ``code`` is the (kind,
    architecture) that the device runs."""

    device_key: str | None = None
    toolchain_key: str | None = None
    profile: str = str(Profile())
    code: tuple[str, str] | None = None

    @classmethod
    def of(cls, measured_on: MeasuredOn | None) -> "LocalIdentity":
        """Return the identity of what jobs are measured on."""
        if measured_on is None:
            return cls()
        target = measured_on.device.target
        code = (target.kind, target.arch)
        return cls(measured_on.device.key, measured_on.toolchain.key, str(measured_on.profile), code)


def who_am_i(target: str = "llvm") -> LocalIdentity:
    """Return the identity of a device of this machine, with its usual profile. Raises UnsupportedTarget."""
    return LocalIdentity.of(measured_on(parse_device(target)))
