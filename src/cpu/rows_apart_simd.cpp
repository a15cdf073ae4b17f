#include "cpu/rows_apart_simd.h"

#include "cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/rows_apart_simd.cpp"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>  // includes this file once per instruction set
#include <hwy/highway.h>

#include <algorithm>

#include "cpu/transpose-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tconv::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

template <typename T>
void transpose_apart(const RowsApart<T>& job) {
  const hn::ScalableTag<T> tag;
  constexpr std::int64_t kLanes = hn::MaxLanes(hn::ScalableTag<T>());
  constexpr std::int64_t kChannels = 16;  // of all rows at a time: as many streams as the hardware follows
  for (std::int64_t first = 0; first < job.channels; first += kChannels) {
    const std::int64_t channels = std::min(kChannels, job.channels - first);
    for (std::int64_t r = 0; r < job.rows; ++r) {
      const T* const from = job.from + first * job.channel_step + job.begins[r];
      T* const to = job.to + first;
      const std::int64_t* const lines = job.lines + r * job.lattices;
      const auto line = [&](std::int64_t c) { return from + c * job.channel_step; };
      const auto store = [&](std::int64_t i, std::int64_t c, std::int64_t valid, auto values) HWY_ATTR {
        if (job.of[i] == RowsApart<T>::kNobody) return;
        T* const cell = to + lines[job.of[i]] + job.places[i] + c;
        if (valid == kLanes) {
          hn::StoreU(values, tag, cell);
        } else {
          hn::BlendedStore(values, hn::FirstN(tag, static_cast<std::size_t>(valid)), tag, cell);
        }
      };
      for (std::int64_t c = transpose_lines<T>(line, channels, job.length, store); c < channels; ++c) {
        for (std::int64_t i = 0; i < job.length; ++i) {
          if (job.of[i] != RowsApart<T>::kNobody) to[lines[job.of[i]] + job.places[i] + c] = line(c)[i];
        }
      }
    }
  }
}

template <typename T>
RowsApartOps<T> make_ops() {
  return {transpose_apart<T>};
}

const RowsApartOps<float>& float_rows_apart() {
  static const auto ops = make_ops<float>();
  return ops;
}
const RowsApartOps<double>& double_rows_apart() {
  static const auto ops = make_ops<double>();
  return ops;
}

}  // namespace HWY_NAMESPACE
}  // namespace tconv::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tconv::cpu {

HWY_EXPORT(float_rows_apart);
HWY_EXPORT(double_rows_apart);

template <>
const RowsApartOps<float>& rows_apart_ops<float>() {
  return HWY_DYNAMIC_DISPATCH(float_rows_apart)();
}
template <>
const RowsApartOps<double>& rows_apart_ops<double>() {
  return HWY_DYNAMIC_DISPATCH(double_rows_apart)();
}

}  // namespace tconv::cpu
#endif
