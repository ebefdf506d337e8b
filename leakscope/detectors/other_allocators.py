"""Device memory grows outside of PyTorch's allocator, and libraries are loaded that have allocators of their own.

CuPy, RMM, ONNX Runtime, TensorRT, DALI, JAX and torch_memory_saver allocate past PyTorch; so does every extension that calls
cudaMalloc. The driver counts all of it for the process and cannot tell one from another.

**Found by** growth outside of the allocator of which caches of kernels and process groups explain less than half, in a
process with at least one such library. It is said to be not attributable: which of them it is nobody has measured.

**Remedy.** Ask the statistics of each library's own pool; trace cudaMalloc and module loads of the process.
"""

from __future__ import annotations

from collections.abc import Iterator

from leakscope.case import Case
from leakscope.detectors import _devices
from leakscope.detectors._devices import Cause
from leakscope.model import Dismissed, Finding, Rule
from leakscope.units import bytes_text

RULE = Rule("LS419", "other-allocators", "Device memory grows outside of PyTorch's allocator")
# Modules and shared objects that allocate on the device past PyTorch: knowledge page, 5.2, class 19; the last lines are ours.
ALLOCATORS = {"cupy": "CuPy", "tensorrt": "TensorRT", "libnvinfer": "TensorRT", "onnxruntime": "ONNX Runtime",
              "libonnxruntime": "ONNX Runtime", "nvidia.dali": "DALI", "libdali": "DALI", "rmm": "RMM", "librmm": "RMM",
              "torch_memory_saver": "torch_memory_saver",
              "jaxlib": "JAX", "tensorflow": "TensorFlow", "numba.cuda": "Numba", "pycuda": "PyCUDA",
              "libnvshmem": "NVSHMEM"}
EXPLAINING = ("LS404", "LS406", "LS418")  # classes that may have memory outside of the allocator


def detect(case: Case) -> Iterator[Finding | Dismissed]:
    """Yield one finding a device."""
    for device, growth in _devices.grown(case, "outside"):
        around = _devices.surroundings(case, device)
        names = sorted({word for name, word in ALLOCATORS.items() if around.has(name)})
        known = _devices.explained_bytes(_devices.told(case, EXPLAINING), device, "outside")
        rest = growth.bytes - known
        if not names or rest < _devices.LEAST_SHARE * growth.bytes:
            continue
        reasons = [f"{bytes_text(rest)} more are used outside of PyTorch's allocator, and no cache of kernels and no process "
                   "group explains them",
                   f"loaded libraries with allocators of their own: {', '.join(names)}"]
        doubts = ["not attributable: the driver counts for the process, and which library it is was not measured"]
        cause = Cause("outside", rest, "device memory outside of PyTorch's allocator", "device memory", reasons, doubts)
        yield _devices.finding(case, device, RULE, cause, _devices.remedy(case, device, "outside"))
