#include "cuda/wgmma.h"

namespace tconv::cuda {
namespace {

// The instruction with its sums: `a` names the operands of the first factor after them, `declared` and `passed` are
// what the function takes and hands over for it.
std::string function(TileMath math, int columns, const char* name, const std::string& a, int a_operands,
                     const char* declared, const char* passed, const char* transposes) {
  const bool tf32 = math == TileMath::tf32 || math == TileMath::fp32x3;
  const char* type = tf32 ? "tf32" : math == TileMath::f16 ? "f16" : "bf16";
  std::string registers;
  std::string operands;
  for (int i = 0; i < columns / 2; ++i) {
    registers += (i > 0 ? ", %" : "%") + std::to_string(i);
    operands +=
        std::string(i > 0 ? ", " : "") + "\"+f\"(d[" + std::to_string(i / 4) + "][" + std::to_string(i % 4) + "])";
  }
  const std::string b = "%" + std::to_string(columns / 2 + a_operands);
  return "__device__ __forceinline__ void " + std::string(name) + "(float (&d)[" + std::to_string(columns / 8) +
         "][4], " + declared +
         ", unsigned long long b) {\n  asm volatile(\"{ .reg .pred p; setp.ne.b32 p, 1, 0; "
         "wgmma.mma_async.sync.aligned.m64n" +
         std::to_string(columns) + "k" + (tf32 ? "8" : "16") + ".f32." + type + "." + type + " {" + registers + "}, " +
         a + ", " + b + ", p, 1, 1" + (tf32 ? "" : transposes) + "; }\"\n : " + operands + "\n : " + passed +
         ", \"l\"(b));\n}\n";
}

}  // namespace

std::string wgmma_function(TileMath math, int columns, bool transposed) {
  const std::string a = "%" + std::to_string(columns / 2);
  return function(math, columns, "multiply", a, 1, "unsigned long long a", "\"l\"(a)",
                  transposed ? ", 1, 1" : ", 0, 0");
}

std::string wgmma_from_registers(TileMath math, int columns, bool transposed) {
  std::string a;
  for (int i = 0; i < 4; ++i) a += (i > 0 ? ", %" : "{%") + std::to_string(columns / 2 + i);
  return function(math, columns, "multiply", a + "}", 4, "const unsigned (&a)[4]",
                  R"("r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]))", transposed ? ", 1" : ", 0");
}

}  // namespace tconv::cuda
