#include "cuda/wgmma.h"

namespace tconv::cuda {

std::string wgmma_function(TileMath math, int columns) {
  const bool tf32 = math == TileMath::tf32;
  const char* type = tf32 ? "tf32" : math == TileMath::f16 ? "f16" : "bf16";
  std::string registers;
  std::string operands;
  for (int i = 0; i < columns / 2; ++i) {
    registers += (i > 0 ? ", %" : "%") + std::to_string(i);
    operands +=
        std::string(i > 0 ? ", " : "") + "\"+f\"(d[" + std::to_string(i / 4) + "][" + std::to_string(i % 4) + "])";
  }
  const std::string a = "%" + std::to_string(columns / 2);
  const std::string b = "%" + std::to_string(columns / 2 + 1);
  return "__device__ __forceinline__ void multiply(float (&d)[" + std::to_string(columns / 8) +
         "][4], unsigned long long a, unsigned long long b) {\n  asm volatile(\"{ .reg .pred p; setp.ne.b32 p, 1, 0; "
         "wgmma.mma_async.sync.aligned.m64n" +
         std::to_string(columns) + "k" + (tf32 ? "8" : "16") + ".f32." + type + "." + type + " {" + registers + "}, " +
         a + ", " + b + ", p, 1, 1" + (tf32 ? "" : ", 0, 0") + "; }\"\n : " + operands +
         "\n : \"l\"(a), \"l\"(b));\n}\n";
}

}  // namespace tconv::cuda
