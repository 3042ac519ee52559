"""Writes a host program around a kernel, which fills its inputs, runs and times it, and prints a hash of each
output."""

from collections.abc import Sequence

from ....ir.stmt import DynamicExtent
from ...backend import KernelParameter, LaunchConfig, Source, TensorMap
from ..compile.resources import STATIC_SHARED_LIMIT_BYTES
from ..emit.types import storage_type

PORTABLE_CLUSTER = 8
"""A function must be allowed to have larger clusters than this."""

_HEAD = """
// ------------------------------------------------------------------------------------------------------------------
// A host program around the kernel:   nvcc -arch={arch} kernel.cu -o kernel && ./kernel
#ifndef __CUDACC_RTC__
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

static void check(cudaError_t status, const char* what) {{
  if (status == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\\n", what, cudaGetErrorString(status));
  std::exit(1);
}}

struct KernelParameter {{
  const char* name;
  char role;  // i: input, o: output, w: workspace
  const char* dtype;
  size_t bytes;
}};

static const KernelParameter parameters[] = {{
{parameters}
}};

"""

_TENSOR_MAPS = """#include <cuda.h>

// a function of the driver
template <typename F> static F driver_function(const char* name) {
  F function = nullptr;
  cudaDriverEntryPointQueryResult found;
  check(cudaGetDriverEntryPointByVersion(name, (void**)&function, 12000, cudaEnableDefault, &found), name);
  return function;
}

// pixels at the positions of a window; everything is given from the innermost dimension on
struct Im2col {
  std::vector<int> lower, upper;
  std::vector<cuuint32_t> strides;
};

// extents and box are given from the innermost dimension on; a box of im2col is (channels, pixels)
static TensorMap tensor_map(void* data, int bytes, std::vector<cuuint64_t> extents, std::vector<cuuint32_t> box,
                            bool swizzle_128b, int l2_promotion_bytes, const Im2col& im2col = {},
                            std::vector<cuuint64_t> strides = {}, bool rounds_to_tf32 = false) {
  static const auto tiled = driver_function<decltype(&cuTensorMapEncodeTiled)>("cuTensorMapEncodeTiled");
  static const auto windows = driver_function<decltype(&cuTensorMapEncodeIm2col)>("cuTensorMapEncodeIm2col");
  if (strides.empty())
    for (size_t i = 0; i < extents.size(); ++i) strides.push_back((i ? strides.back() : bytes) * extents[i]);
  std::vector<cuuint32_t> steps(extents.size(), 1);
  for (size_t i = 0; i < im2col.strides.size(); ++i) steps[i + 1] = im2col.strides[i];
  const CUtensorMapDataType types[] = {CU_TENSOR_MAP_DATA_TYPE_UINT8, CU_TENSOR_MAP_DATA_TYPE_UINT16,
                                       CU_TENSOR_MAP_DATA_TYPE_UINT32, CU_TENSOR_MAP_DATA_TYPE_UINT64};
  const CUtensorMapDataType type = rounds_to_tf32 ? CU_TENSOR_MAP_DATA_TYPE_TFLOAT32
                                                  : types[bytes == 1 ? 0 : bytes == 2 ? 1 : bytes == 4 ? 2 : 3];
  const auto swizzle = swizzle_128b ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_NONE;
  const auto promotion =
      l2_promotion_bytes == 256 ? CU_TENSOR_MAP_L2_PROMOTION_L2_256B : CU_TENSOR_MAP_L2_PROMOTION_L2_128B;
  TensorMap map;
  const auto status =
      im2col.strides.empty()
          ? tiled((CUtensorMap*)&map, type, extents.size(), data, extents.data(), strides.data(), box.data(),
                  steps.data(), CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, promotion, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE)
          : windows((CUtensorMap*)&map, type, extents.size(), data, extents.data(), strides.data(),
                    im2col.lower.data(), im2col.upper.data(), box[0], box[1], steps.data(),
                    CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, promotion, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS) check(cudaErrorInvalidValue, "encoding a tensor map");
  // up to CUDA 13.1, drivers set a flag by mistake for tensors under 128 KiB
  int driver = 0;
  check(cudaDriverGetVersion(&driver), "cudaDriverGetVersion");
  if (!im2col.strides.empty() && strides.back() < 131072 && driver <= 13010) map.words[1] &= ~(1ull << 21);
  return map;
}

"""

_COOPERATIVE = """// a launch whose blocks all run at once
template <typename... T>
static void run_cooperatively(void (*kernel)(T...), dim3 blocks, unsigned threads, size_t shared, T... given) {
  void* arguments[] = {(void*)&given...};
  check(cudaLaunchCooperativeKernel((const void*)kernel, blocks, threads, arguments, shared, 0), "launch");
}

"""

_TAIL = """
// inputs are floats in [0.5, 1), small integers and bools
static unsigned spread(size_t i) { return (unsigned)((i * 2654435761u) >> 8); }

template <typename T, typename F> static void fill_as(std::vector<unsigned char>& data, F value) {
  T* const x = (T*)data.data();
  for (size_t i = 0; i < data.size() / sizeof(T); ++i) x[i] = (T)value(spread(i));
}

static void fill(std::vector<unsigned char>& data, const char* dtype) {
  const auto is = [&](const char* name) { return std::strcmp(dtype, name) == 0; };
  if (is("float16")) fill_as<unsigned short>(data, [](unsigned s) { return 0x3800 | (s & 0x3ff); });
  else if (is("bfloat16")) fill_as<unsigned short>(data, [](unsigned s) { return 0x3f00 | (s & 0x7f); });
  else if (is("float32")) fill_as<float>(data, [](unsigned s) { return 0.5f + (s & 0xffff) / 131072.0f; });
  else if (is("float64")) fill_as<double>(data, [](unsigned s) { return 0.5 + (s & 0xffff) / 131072.0; });
  else if (is("int64")) fill_as<long long>(data, [](unsigned s) { return s % 7; });
  else if (is("int32")) fill_as<int>(data, [](unsigned s) { return s % 7; });
  else fill_as<unsigned char>(data, [](unsigned s) { return s % 2; });
}

int main() {
  const int count = sizeof(parameters) / sizeof(parameters[0]), rounds = 20;
  std::vector<void*> p(count);
  for (int i = 0; i < count; ++i) {
    check(cudaMalloc(&p[i], parameters[i].bytes), "cudaMalloc");
    std::vector<unsigned char> data(parameters[i].bytes);
    if (parameters[i].role == 'i') fill(data, parameters[i].dtype);
    check(cudaMemcpy(p[i], data.data(), data.size(), cudaMemcpyHostToDevice), "cudaMemcpy");
  }
  prepare();
  cudaEvent_t begin, end;
  check(cudaEventCreate(&begin), "cudaEventCreate");
  check(cudaEventCreate(&end), "cudaEventCreate");
  run(p.data());
  check(cudaGetLastError(), "launch");
  check(cudaDeviceSynchronize(), "run");
  check(cudaEventRecord(begin), "cudaEventRecord");
  for (int i = 0; i < rounds; ++i) run(p.data());
  check(cudaEventRecord(end), "cudaEventRecord");
  check(cudaDeviceSynchronize(), "run");
  float milliseconds = 0;
  check(cudaEventElapsedTime(&milliseconds, begin, end), "cudaEventElapsedTime");
  std::printf("%.2f us a run (warm cache, launches included)\\n", 1e3 * milliseconds / rounds);
  for (int i = 0; i < count; ++i) {
    if (parameters[i].role != 'o') continue;
    std::vector<unsigned char> data(parameters[i].bytes);
    check(cudaMemcpy(data.data(), p[i], data.size(), cudaMemcpyDeviceToHost), "cudaMemcpy");
    unsigned long long hash = 14695981039346656037ull;  // FNV-1a
    for (unsigned char byte : data) hash = (hash ^ byte) * 1099511628211ull;
    std::printf("%s: %zu bytes, FNV-1a %016llx\\n", parameters[i].name, data.size(), hash);
  }
  for (void* pointer : p) cudaFree(pointer);
}
#endif
"""


def with_launcher(source: Source, arch: str) -> str:
    """Return the text of ``source`` followed by a program, which nvcc builds. NVRTC sees the kernel alone."""
    rows = ",\n".join(f'  {{"{p.name}", \'{p.role[0]}\', "{p.dtype}", {p.bytes}ull}}' for p in source.parameters)
    head = _HEAD.format(arch=arch, parameters=rows)
    attributes = "".join(_set_attributes(config) for config in source.launches)
    largest = [d.most for d in source.dynamic]
    called = [c for c in source.launches if all(c.at_extent(source.dynamic, source.parameters, largest).blocks)]
    launches = "".join(_launch(config, source.parameters, source.dynamic) for config in called)
    body = f"static void prepare() {{\n{attributes}}}\n\nstatic void run(void* const* p) {{\n{launches}}}\n"
    maps = _TENSOR_MAPS if any(config.tensor_maps for config in source.launches) else ""
    together = _COOPERATIVE if any(config.cooperative for config in source.launches) else ""
    return source.text + head + maps + together + body + _TAIL


def _set_attributes(config: LaunchConfig) -> str:
    wanted = []
    if config.shared_bytes > STATIC_SHARED_LIMIT_BYTES:
        wanted.append(("cudaFuncAttributeMaxDynamicSharedMemorySize", config.shared_bytes))
    if config.cluster > PORTABLE_CLUSTER:
        wanted.append(("cudaFuncAttributeNonPortableClusterSizeAllowed", 1))
    return "".join(
        f'  check(cudaFuncSetAttribute({config.function}, {name}, {value}), "cudaFuncSetAttribute");\n'
        for name, value in wanted
    )


def _launch(config: LaunchConfig, parameters: tuple[KernelParameter, ...], dynamic: tuple[DynamicExtent, ...]) -> str:
    """Return the launch, at the largest extents where some are dynamic."""
    x, y, z = config.blocks
    given = ", ".join(
        f"({'const ' if parameters[i].role == 'input' else ''}{storage_type(parameters[i].dtype)}*)p[{i}]"
        for i in config.arguments
    )
    given += "".join(f", {d.most}" for d in dynamic if d.var in config.takes_extents)
    maps = "".join(f", {_tensor_map(m, parameters[m.parameter])}" for m in config.tensor_maps)
    given = (given + maps).removeprefix(", ")
    if config.cooperative:
        return (
            f"  run_cooperatively({config.function}, dim3({x}, {y}, {z}), {config.threads}, {config.shared_bytes}, "
            f"{given});\n"
        )
    return f"  {config.function}<<<dim3({x}, {y}, {z}), {config.threads}, {config.shared_bytes}>>>({given});\n"


def _tensor_map(described: TensorMap, parameter: KernelParameter) -> str:
    shape = parameter.shape if described.shape is None else described.shape
    extents, box = _reversed(shape), _reversed(described.box)
    how = f"{'true' if described.swizzle_128b else 'false'}, {described.l2_promotion_bytes}"
    window = described.im2col
    if window is not None or described.strides is not None or described.rounds_to_tf32:
        sides = () if window is None else (window.lower, window.upper(shape[1:-1]), window.strides)
        how += f", Im2col{{{', '.join(f'{{{_reversed(side)}}}' for side in sides)}}}"
    if described.strides is not None:
        sizes = [stride * parameter.dtype.bytes for stride in (parameter.bytes // parameter.dtype.bytes,)]
        how += f", {{{_reversed([*sizes, *(n * parameter.dtype.bytes for n in described.strides[:-1])])}}}"
    elif described.rounds_to_tf32:
        how += ", {}"
    how += ", true" if described.rounds_to_tf32 else ""
    return f"tensor_map(p[{described.parameter}], {parameter.dtype.bytes}, {{{extents}}}, {{{box}}}, {how})"


def _reversed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, reversed(numbers)))
