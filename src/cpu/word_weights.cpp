#include "cpu/word_weights.h"

#include <algorithm>
#include <array>

#include "cpu/bf16_products.h"

namespace tconv::cpu {
namespace {

constexpr std::int64_t kFewestTaps = 32;  // fewer are widened faster, several channels at a time
constexpr std::int64_t kMostTaps = 1024;
constexpr std::int64_t kPiece = 64;  // taps that are transposed together
constexpr std::int64_t kLanes = 16;

}  // namespace

bool packs_words(const PackWeights<BFloat16, float>& job) {
  if (!job.whole_taps || job.tap_count < kFewestTaps || job.tap_count > kMostTaps || job.target_step == 1) return false;
  std::array<bool, kMostTaps> there{};  // expanded weights: several taps are one element
  for (std::int64_t t = 0; t < job.tap_count; ++t) there[job.taps[t].from] = true;
  return std::all_of(there.begin(), there.begin() + job.tap_count, [](bool is_there) { return is_there; });
}

void pack_words(const PackWeights<BFloat16, float>& job) {
  std::array<const PackTap*, kMostTaps> in_order{};
  for (std::int64_t t = 0; t < job.tap_count; ++t) in_order[job.taps[t].from] = job.taps + t;
  alignas(64) std::array<float, kLanes * kPiece> words{};
  alignas(64) std::array<float, kLanes * kPiece> rows{};
  const ElementOps<float, float>& ops = element_ops<float, float>();
  const std::int64_t end = job.first_channel + job.channels;
  for (std::int64_t c = job.first_channel; c < end; c += 2) {
    for (std::int64_t first = 0; first < job.width; first += kLanes) {
      const std::int64_t valid = std::clamp<std::int64_t>(job.valid - first, 0, kLanes);
      const std::int64_t width = std::min(kLanes, job.width - first);
      const BFloat16* const targets = job.source + c * job.channel_step + first * job.target_step;
      if (valid < kLanes) rows.fill(0);
      for (std::int64_t piece = 0; piece < job.tap_count; piece += kPiece) {
        const std::int64_t taps = std::min(kPiece, job.tap_count - piece);
        for (std::int64_t n = 0; n < valid; ++n) {
          const BFloat16* const from = targets + n * job.target_step + piece;
          pair_cells(from, c + 1 < end ? from + job.channel_step : nullptr, taps, words.data() + n * kPiece);
        }
        if (valid > 0) ops.load_channels(words.data(), kPiece, rows.data(), kLanes, valid, taps);
        for (std::int64_t t = 0; t < taps; ++t) {
          const PackTap& tap = *in_order[piece + t];
          std::copy_n(rows.data() + t * kLanes, width, job.packed + tap.to + c / 2 * tap.to_step + first);
        }
      }
    }
  }
}

}  // namespace tconv::cpu
