#include "cpu/weight_blocks.h"

namespace tconv::cpu {
namespace {

// Tiles that the busiest of some threads sums, of tasks taken one after the other.
std::int64_t longest_share(std::int64_t threads, std::int64_t blocks, std::int64_t splits, std::int64_t tiles) {
  std::vector<std::int64_t> busy(threads);
  for (std::int64_t task = 0; task < blocks * splits; ++task) {
    const std::int64_t split = task % splits;
    *std::ranges::min_element(busy) += tiles * (split + 1) / splits - tiles * split / splits;
  }
  return std::ranges::max(busy);
}

}  // namespace

std::int64_t choose_splits(const Problem& problem, const WeightBlocking& blocking, std::int64_t tiles) {
  std::int64_t size = std::max<std::int64_t>(blocking.elements(), 1);
  for (const Axis& axis : problem.axes) size *= axis.kernel;
  const std::int64_t blocks = std::max<std::int64_t>(blocking.tasks_of_split(), 1);
  const std::int64_t most = std::min({ceil_div(kSumTasksWanted, blocks), room_for_partials(problem) / size, tiles});
  if (most <= 1) return 1;
  std::int64_t best = most;
  std::int64_t least = 0;
  for (std::int64_t splits = most; splits >= 1; --splits) {
    std::int64_t cost = 0;
    for (const std::int64_t threads : {2, 4}) cost += threads * longest_share(threads, blocks, splits, tiles);
    if (splits == most || cost < least) {
      least = cost;
      best = splits;
    }
  }
  return best;
}

void cut_for_threads(WeightBlocking& blocking, std::int64_t taps, std::int64_t threads, std::int64_t unit,
                     std::int64_t packing) {
  if (blocking.group_outputs <= unit) return;
  const std::int64_t tasks_of_block = blocking.blocks() / std::max<std::int64_t>(blocking.output_blocks, 1) *
                                      blocking.splits;  // of all that share its output channels
  const auto cost_of = [&](std::int64_t outputs) {
    const std::int64_t rounds = ceil_div(ceil_div(blocking.group_outputs, outputs) * tasks_of_block, threads);
    return rounds * (outputs * taps + packing);
  };
  std::int64_t best = blocking.outputs;
  for (std::int64_t blocks = blocking.output_blocks; blocks <= blocking.output_blocks + threads; ++blocks) {
    const std::int64_t outputs = round_up(ceil_div(blocking.group_outputs, blocks), unit);
    if (outputs <= blocking.outputs && cost_of(outputs) < cost_of(best)) best = outputs;
  }
  blocking.outputs = best;
  blocking.output_blocks = ceil_div(blocking.group_outputs, best);
}

}  // namespace tconv::cpu
