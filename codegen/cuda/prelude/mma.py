"""These functions wrap the matrix instructions of warps (``mma.sync``) and the moves of their fragments (``ldmatrix``,
``stmatrix``)."""

from .device_function import DeviceFunction


def _mma_m16n8k16(type: str) -> str:
    return f"""// d += a * b; all three are fragments in the registers of a warp
void mma_m16n8k16_{type}(float* d, const unsigned* a, const unsigned* b) {{
  asm("mma.sync.aligned.m16n8k16.row.col.f32.{type}.{type}.f32 {{%0, %1, %2, %3}}, {{%4, %5, %6, %7}}, {{%8, %9}}, "
      "{{%0, %1, %2, %3}};" : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}}"""


MMA: dict[str, DeviceFunction] = {
    "mma_m16n8k16_f16": DeviceFunction(_mma_m16n8k16("f16")),
    "mma_m16n8k16_bf16": DeviceFunction(_mma_m16n8k16("bf16")),
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
