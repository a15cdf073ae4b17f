// What the processor's units for multiply-adds can do, for benchmarks that state shares of it.
#include "cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/peak_simd.cpp"
#include <hwy/foreach_target.h>  // includes this file once per instruction set
#include <hwy/highway.h>

#include <cstdint>
#include <string>

#include "tconv/error.h"
#include "tconv/info.h"

HWY_BEFORE_NAMESPACE();
namespace tconv::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Chains that do not wait for each other: more than two units with a latency of four or five cycles need, and few
// enough for sixteen registers.
constexpr int kChains = 12;

template <typename T>
std::int64_t run_chains(std::int64_t rounds) {
  const hn::ScalableTag<T> tag;
  hn::Vec<decltype(tag)> sums[kChains];
  for (int i = 0; i < kChains; ++i) sums[i] = hn::Set(tag, static_cast<T>(i));
  // Read at run time, so that nothing is worked out beforehand. Sums approach one and stay ordinary numbers.
  volatile T half = static_cast<T>(0.5);
  const auto factor = hn::Set(tag, half);
  for (std::int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 16
    for (auto& sum : sums) sum = hn::MulAdd(sum, factor, factor);
  }
  auto all = sums[0];
  for (int i = 1; i < kChains; ++i) all = hn::Add(all, sums[i]);
  half = hn::GetLane(all);  // a use of the sums
  return rounds * kChains * static_cast<std::int64_t>(hn::Lanes(tag));
}

std::int64_t run_float_chains(std::int64_t rounds) { return run_chains<float>(rounds); }
std::int64_t run_double_chains(std::int64_t rounds) { return run_chains<double>(rounds); }

}  // namespace HWY_NAMESPACE
}  // namespace tconv::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tconv::cpu {

HWY_EXPORT(run_float_chains);
HWY_EXPORT(run_double_chains);

static std::int64_t float_chains(std::int64_t rounds) { return HWY_DYNAMIC_DISPATCH(run_float_chains)(rounds); }
static std::int64_t double_chains(std::int64_t rounds) { return HWY_DYNAMIC_DISPATCH(run_double_chains)(rounds); }

}  // namespace tconv::cpu

namespace tconv {

std::int64_t multiply_adds(DType dtype, std::int64_t rounds) {
  if (dtype == DType::f64) return cpu::double_chains(rounds);
  if (dtype == DType::f32) return cpu::float_chains(rounds);
  throw Error(std::string("multiply-adds are counted in f32 or f64, got ") + name_of(dtype));
}

}  // namespace tconv
#endif
