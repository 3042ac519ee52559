"""These functions wrap the matrix instructions of warps (``mma.sync``) and the moves of their fragments (``ldmatrix``,
``stmatrix``)."""

from .device_function import DeviceFunction


def _mma_m16n8(k: int, type: str) -> str:
    register, bits = register_type(type)
    a, b = (", ".join(f'"r"({bits.format(f"{name}[{i}]")})' for i in range(n)) for name, n in (("a", 4), ("b", 2)))
    return f"""// d += a * b; all three are fragments in the registers of a warp
void mma_m16n8k{k}_{type}(float* d, const {register}* a, const {register}* b) {{
  asm("mma.sync.aligned.m16n8k{k}.row.col.f32.{type}.{type}.f32 {{%0, %1, %2, %3}}, {{%4, %5, %6, %7}}, {{%8, %9}}, "
      "{{%0, %1, %2, %3}};" : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : {a}, {b});
}}"""


def _mma_m16n8k8_f64() -> str:
    d, a, b = (", ".join(f"%{first + i}" for i in range(count)) for first, count in ((0, 4), (4, 4), (8, 2)))
    results = ", ".join(f'"+d"(d[{i}])' for i in range(4))
    operands = ", ".join(f'"d"({name}[{i}])' for name, count in (("a", 4), ("b", 2)) for i in range(count))
    return f"""// d += a * b; all three are fragments in the registers of a warp
void mma_m16n8k8_f64(double* d, const double* a, const double* b) {{
  asm("mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 {{{d}}}, {{{a}}}, {{{b}}}, {{{d}}};"
      : {results}
      : {operands});
}}"""


def register_type(type: str) -> tuple[str, str]:
    """Return how a register of operands is declared, and how its bits are written, by PTX's name of the operand."""
    return ("float", "__float_as_uint({})") if type == "tf32" else ("unsigned", "{}")


MMA: dict[str, DeviceFunction] = {
    "mma_m16n8k16_f16": DeviceFunction(_mma_m16n8(16, "f16")),
    "mma_m16n8k16_bf16": DeviceFunction(_mma_m16n8(16, "bf16")),
    "mma_m16n8k8_tf32": DeviceFunction(_mma_m16n8(8, "tf32")),
    "mma_m16n8k8_f64": DeviceFunction(_mma_m16n8k8_f64()),
    "ldmatrix": DeviceFunction(
        """// loads COUNT 8x8 matrices of 16-bit elements; each lane passes the address of one row
template <int COUNT, bool TRANSPOSED> $void ldmatrix(unsigned* to, const void* row) {
  const unsigned address = smem_address(row);
  if (COUNT == 4 && TRANSPOSED)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(address) : "memory");
  else if (COUNT == 4)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(address) : "memory");
  else if (COUNT == 2 && TRANSPOSED)
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                 : "=r"(to[0]), "=r"(to[1]) : "r"(address) : "memory");
  else if (COUNT == 2)
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                 : "=r"(to[0]), "=r"(to[1]) : "r"(address) : "memory");
  else if (TRANSPOSED)
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%0}, [%1];"
                 : "=r"(to[0]) : "r"(address) : "memory");
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];"
                 : "=r"(to[0]) : "r"(address) : "memory");
}""",
        ("smem_address",),
    ),
    "stmatrix": DeviceFunction(
        """// stores COUNT 8x8 matrices of 16-bit elements; each lane passes the address of one row
template <int COUNT, bool TRANSPOSED> $void stmatrix(void* row, const unsigned* from) {
  const unsigned address = smem_address(row);
  if (COUNT == 4 && TRANSPOSED)
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};"
                 :: "r"(address), "r"(from[0]), "r"(from[1]), "r"(from[2]), "r"(from[3]) : "memory");
  else if (COUNT == 4)
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
                 :: "r"(address), "r"(from[0]), "r"(from[1]), "r"(from[2]), "r"(from[3]) : "memory");
  else if (COUNT == 2 && TRANSPOSED)
    asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};"
                 :: "r"(address), "r"(from[0]), "r"(from[1]) : "memory");
  else if (COUNT == 2)
    asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1, %2};"
                 :: "r"(address), "r"(from[0]), "r"(from[1]) : "memory");
  else if (TRANSPOSED)
    asm volatile("stmatrix.sync.aligned.m8n8.x1.trans.shared.b16 [%0], {%1};"
                 :: "r"(address), "r"(from[0]) : "memory");
  else
    asm volatile("stmatrix.sync.aligned.m8n8.x1.shared.b16 [%0], {%1};"
                 :: "r"(address), "r"(from[0]) : "memory");
}""",
        ("smem_address",),
    ),
}
"""It maps names to functions."""
