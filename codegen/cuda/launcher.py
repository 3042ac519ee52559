"""A host program around a kernel: fills its inputs, runs it, times it, and prints a sum over each output."""

from ..backend import Grid, Parameter, Source
from .resources import STATIC_SHARED_LIMIT_BYTES
from .types import stored

PORTABLE_CLUSTER = 8
"""Larger clusters must be allowed function by function."""

_HEAD = """
// ------------------------------------------------------------------------------------------------------------------
// A host program around it:   nvcc -arch={arch} kernel.cu -o kernel && ./kernel
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

struct Parameter {{
  const char* name;
  char role;  // i: input, o: output, w: workspace
  const char* dtype;
  size_t bytes;
}};

static const Parameter parameters[] = {{
{parameters}
}};

"""

_TAIL = """
// floats in [0.5, 1), small integers, bools
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
    """The text of ``source`` with a program behind it that nvcc builds; NVRTC sees the kernel alone."""
    rows = ",\n".join(f'  {{"{p.name}", \'{p.role[0]}\', "{p.dtype}", {p.bytes}ull}}' for p in source.parameters)
    head = _HEAD.format(arch=arch, parameters=rows)
    prepare = "".join(_prepared(grid) for grid in source.launches)
    runs = "".join(_launched(grid, source.parameters) for grid in source.launches)
    between = f"static void prepare() {{\n{prepare}}}\n\nstatic void run(void* const* p) {{\n{runs}}}\n"
    return source.text + head + between + _TAIL


def _prepared(grid: Grid) -> str:
    wanted = []
    if grid.shared_bytes > STATIC_SHARED_LIMIT_BYTES:
        wanted.append(("cudaFuncAttributeMaxDynamicSharedMemorySize", grid.shared_bytes))
    if grid.cluster > PORTABLE_CLUSTER:
        wanted.append(("cudaFuncAttributeNonPortableClusterSizeAllowed", 1))
    return "".join(
        f'  check(cudaFuncSetAttribute({grid.function}, {name}, {value}), "cudaFuncSetAttribute");\n'
        for name, value in wanted
    )


def _launched(grid: Grid, parameters: tuple[Parameter, ...]) -> str:
    x, y, z = grid.blocks
    given = ", ".join(
        f"({'const ' if parameters[i].role == 'input' else ''}{stored(parameters[i].dtype)}*)p[{i}]"
        for i in grid.arguments
    )
    return f"  {grid.function}<<<dim3({x}, {y}, {z}), {grid.threads}, {grid.shared_bytes}>>>({given});\n"
