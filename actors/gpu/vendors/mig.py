"""MIG through NVML: what a GPU is cut into, and how it is cut. Runs inside a DeviceProbe child only.

An instance of ours is always a GPU instance with one compute instance of its whole size, which is what
``nvidia-smi mig -cgi PROFILE -C`` makes.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial
from typing import Any

from ..mig_report import UNFINISHED, MigGpu, MigInstance, MigProfile
from ..probe_report import SettingRefused

SLICES = 7
"""Compute slices of a GPU, as ``demand.MIG_SLICES`` counts them."""

ProfilesKey = tuple[str, int, bool]
"""What GPUs with the same MIG profiles have in common: model, memory in MiB, and whether MIG is on."""


def text_of(answer: Any) -> str:
    """A text of NVML's, which its binding gives as bytes or not."""
    return answer.decode(errors="replace") if isinstance(answer, bytes) else str(answer)


class MigCalls:
    """The MIG calls of *nvml*; *value* gives what a call gives, or ``None`` where there is no such thing."""

    def __init__(self, nvml: Any, value: Callable[[Callable[[], Any]], Any]) -> None:
        self._nvml = nvml
        self._value = value

    # -- what there is

    def modes(self, whole: Any) -> tuple[bool, bool] | None:
        """Whether MIG is on, and will be after a reset; ``None`` for a GPU that has none."""
        found = self._value(lambda: self._nvml.nvmlDeviceGetMigMode(whole))
        return None if found is None else (found[0] == 1, found[1] == 1)

    def instances(self, whole: Any) -> list[Any]:
        """The handles of a GPU's instances. Raises NVMLError."""
        nvml = self._nvml
        found = []
        for number in range(nvml.nvmlDeviceGetMaxMigDeviceCount(whole)):
            try:
                found.append(nvml.nvmlDeviceGetMigDeviceHandleByIndex(whole, number))
            except nvml.NVMLError as error:
                if error.value not in (nvml.NVML_ERROR_NOT_FOUND, nvml.NVML_ERROR_INVALID_ARGUMENT):
                    raise
        return found

    def slices(self, instance: Any) -> int:
        """How many of a GPU's seven compute slices an instance has; as many as the driver tells."""
        told = self._value(lambda: self._nvml.nvmlDeviceGetAttributes(instance))
        return SLICES if told is None else max(1, min(SLICES, int(told.gpuInstanceSliceCount)))

    def profile_of(self, instance: Any, model: str) -> str:
        """The profile of an instance whose model is *model*, which newer drivers end with it."""
        named = model.rpartition(" MIG ")[2] if " MIG " in model else ""
        if named:
            return named
        told = self._value(lambda: self._nvml.nvmlDeviceGetAttributes(instance))
        return "" if told is None else f"{told.gpuInstanceSliceCount}g.{round(told.memorySizeMB / 1024)}gb"

    def gpu(
        self,
        whole: Any,
        uuid: str,
        model: str,
        bus_id: str | None,
        listed: list[MigInstance],
        profiles_of: dict[ProfilesKey, dict[str, Any]],
    ) -> MigGpu | None:
        """What a GPU is cut into, *listed*, and can be; ``None`` where it cannot.

        *profiles_of*: what GPUs of this listing had; those of one model and mode have the same, which is asked once: it
        is two calls for each of some 17 profiles.
        """
        modes = self.modes(whole)
        if modes is None:
            return None
        memory_mib = int(self._nvml.nvmlDeviceGetMemoryInfo(whole).total) // 2**20
        key = (model, memory_mib, modes[0])
        if key not in profiles_of:
            profiles_of[key] = self._profiles(whole)
        known = profiles_of[key]
        profiles = [
            MigProfile(
                name,
                int(info.memorySizeMB),
                int(info.instanceCount),
                self._value(partial(self._nvml.nvmlDeviceGetGpuInstanceRemainingCapacity, whole, info.id))
                if modes[0]
                else None,
            )
            for name, info in known.items()
        ]
        unfinished = self._unfinished(whole, known) if modes[0] else ()
        return MigGpu(uuid, model, memory_mib, bus_id, *modes, tuple(listed), tuple(profiles), unfinished)

    def _unfinished(self, whole: Any, profiles: dict[str, Any]) -> tuple[MigInstance, ...]:
        """The GPU instances in which there is no compute instance; none where the driver does not tell."""
        nvml = self._nvml
        finished = self._value(lambda: {nvml.nvmlDeviceGetGpuInstanceId(each) for each in self.instances(whole)})
        if finished is None:
            return ()
        found = []
        for name, info in profiles.items():
            handles, count = (nvml.c_nvmlGpuInstance_t * max(1, int(info.instanceCount)))(), ctypes.c_uint()
            ask = partial(nvml.nvmlDeviceGetGpuInstances, whole, info.id, handles, ctypes.byref(count))
            if self._value(ask) is None:
                continue
            for handle in handles[: count.value]:
                told = self._value(partial(nvml.nvmlGpuInstanceGetInfo, handle))
                if told is not None and int(told.id) not in finished:
                    found.append(MigInstance(f"{UNFINISHED}{int(told.id)}", name, int(info.memorySizeMB)))
        return tuple(found)

    def _profiles(self, whole: Any) -> dict[str, Any]:
        """The profiles of a GPU by name, with what NVML tells of each."""
        nvml = self._nvml
        found: dict[str, Any] = {}
        for number in range(nvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
            told = partial(nvml.nvmlDeviceGetGpuInstanceProfileInfo, whole, number)
            info = self._value(told)
            if info is None:  # an older driver has the first version alone, which does not name it
                info = self._value(partial(told, 1))
            if info is None:
                continue
            name = text_of(getattr(info, "name", "")).removeprefix("MIG ")
            found.setdefault(name or f"{info.sliceCount}g.{round(info.memorySizeMB / 1024)}gb", info)
        return found

    # -- what is changed

    def set_mode(self, whole: Any, on: bool) -> None:
        """Have MIG be on or off. Raises SettingRefused, also where that waits for a reset: then it is as it was."""
        nvml = self._nvml
        try:
            status = int(nvml.nvmlDeviceSetMigMode(whole, int(on)))
            if status == nvml.NVML_SUCCESS and self.modes(whole) == (on, on):
                return
            nvml.nvmlDeviceSetMigMode(whole, int(not on))
        except nvml.NVMLError as error:
            raise SettingRefused(f"MIG cannot be switched {'on' if on else 'off'}: {error}") from error
        raise SettingRefused(f"MIG is {'on' if on else 'off'} only after a reset of the GPU: nvidia-smi --gpu-reset")

    def create(self, whole: Any, profile: str) -> str:
        """Cut an instance of that *profile*; its UUID. Raises SettingRefused, and has left nothing then."""
        nvml = self._nvml
        info = self._profiles(whole).get(profile)
        if info is None:
            raise SettingRefused(
                f"the GPU has no profile {profile}: it has {', '.join(self._profiles(whole)) or 'none'}"
            )
        try:
            made = nvml.nvmlDeviceCreateGpuInstance(whole, info.id)
        except nvml.NVMLError as error:
            raise SettingRefused(f"no instance {profile}: {error}") from error
        try:
            number = int(nvml.nvmlGpuInstanceGetInfo(made).id)
            nvml.nvmlGpuInstanceCreateComputeInstance(made, self._compute_profile(made, int(info.sliceCount)))
            for handle in self.instances(whole):
                if nvml.nvmlDeviceGetGpuInstanceId(handle) == number:
                    return self._uuid(handle)
            raise SettingRefused(f"instance {number}, {profile}, was made and is not listed")
        except (nvml.NVMLError, SettingRefused) as error:
            self._value(lambda: nvml.nvmlGpuInstanceDestroy(made))
            raise SettingRefused(f"no compute instance in {profile}: {error}") from error

    def _compute_profile(self, made: Any, slices: int) -> int:
        """The compute profile that has all *slices* of a GPU instance. Raises SettingRefused."""
        nvml = self._nvml
        for number in range(nvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
            for version in (2, 1):
                info = self._value(
                    partial(
                        nvml.nvmlGpuInstanceGetComputeInstanceProfileInfo,
                        *(made, number, nvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED, version),
                    )
                )
                if info is not None and int(info.sliceCount) == slices:
                    return int(info.id)
        raise SettingRefused(f"it has no compute profile of {slices} slices")

    def destroy(self, whole: Any, uuid: str) -> None:
        """Take away the instance of that *uuid*. Raises SettingRefused; a process on it keeps it."""
        nvml = self._nvml
        if uuid.startswith(UNFINISHED):
            self._destroy_unfinished(whole, uuid)
            return
        handles = {self._uuid(handle): handle for handle in self.instances(whole)}
        if uuid not in handles:
            raise SettingRefused(f"the GPU has no instance {uuid}: it has {', '.join(handles) or 'none'}")
        try:
            number = nvml.nvmlDeviceGetGpuInstanceId(handles[uuid])
            instance = nvml.nvmlDeviceGetGpuInstanceById(whole, number)
            compute = nvml.nvmlGpuInstanceGetComputeInstanceById(
                instance, nvml.nvmlDeviceGetComputeInstanceId(handles[uuid])
            )
            nvml.nvmlComputeInstanceDestroy(compute)
            others = [each for each in self.instances(whole) if nvml.nvmlDeviceGetGpuInstanceId(each) == number]
            if not others:  # somebody may have made several compute instances in one GPU instance
                nvml.nvmlGpuInstanceDestroy(instance)
        except nvml.NVMLError as error:
            raise SettingRefused(f"instance {uuid} stays: {error}") from error

    def _destroy_unfinished(self, whole: Any, name: str) -> None:
        """Take away a GPU instance that is still without a compute instance: with one, the driver refuses it."""
        nvml = self._nvml
        try:
            number = int(name.removeprefix(UNFINISHED))
            nvml.nvmlGpuInstanceDestroy(nvml.nvmlDeviceGetGpuInstanceById(whole, number))
        except (ValueError, nvml.NVMLError) as error:
            raise SettingRefused(f"{name} stays: {error}") from error

    def _uuid(self, handle: Any) -> str:
        return text_of(self._nvml.nvmlDeviceGetUUID(handle))
