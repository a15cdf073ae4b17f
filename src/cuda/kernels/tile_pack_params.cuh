// How the pack kernel (tile_pack.cuh) cuts the weights of a tile kernel; known to the host, which launches it.
#pragma once

#include "tile_params.cuh"

// A block of the pack kernel takes some slabs of input channels and some of a block's output channels through shared
// memory, for some of the lines (output channels of one phase at one distance, or of one tap of a gradient). Weights
// that don't fit (no slabs) are read in place, a thread for each line, so that neighbours read taps that mostly are
// neighbours, too.
struct PackCut {
  int slabs;
  int row_parts;
  int line_parts;
};
// What neighbouring threads read: rows, summed channels, or taps and then one of these.
enum class PackOrder : int { rows, summed, taps_of_rows, taps_of_summed };
constexpr int kPackThreads = 256;
constexpr int kMostPackBytes = 48 * 1024;
constexpr int kPackBlocks = 528;  // enough for a chip: what a block does one after the other takes time, however little
constexpr int kPackSector = 2;    // rows of a line that are written at once at least
constexpr int pack_lines(const TileShape& shape) {
  return shape.all_residue_blocks() * shape.all_plane_groups() * shape.all_backs() * shape.all_slots();
}
constexpr int pack_part_rows(const TileShape& shape, const PackCut& cut) {
  return (shape.block_channels + cut.row_parts - 1) / cut.row_parts;
}
// Threads that take the rows of a line together.
constexpr int pack_line_threads(const TileShape& shape, const PackCut& cut) {
  if (cut.slabs == 0) return 1;
  int threads = 32;
  while (threads > kPackSector && threads > pack_part_rows(shape, cut)) threads /= 2;
  return threads;
}
constexpr PackCut pack_cut(const TileShape& shape) {
  PackCut cut = {shape.slabs, 1, 1};
  const auto rows = [&] { return pack_part_rows(shape, cut); };
  const double taps = static_cast<double>(shape.kernel[0]) * shape.kernel[1] * shape.kernel[2] + 1;
  const auto fits = [&] { return 16 * cut.slabs * (taps * rows() + 1) <= kMostPackBytes; };
  while (cut.slabs > 1 && !fits()) cut.slabs /= 2;
  while (!fits() && rows() >= 2 * kPackSector) cut.row_parts *= 2;
  if (!fits()) return {0, 4, (pack_lines(shape) + kPackThreads - 1) / kPackThreads};
  // More per block only as long as there are blocks enough for a chip.
  const int runs = shape.channel_chunks() * shape.slabs * (1 + (shape.out_channels - 1) / shape.block_channels);
  // Both halves of a window's taps are neighbours in memory.
  const int least = shape.window > 1 && shape.channels % (2 * shape.vector()) == 0 ? 2 : 1;
  while (cut.slabs > least && runs / cut.slabs < 800) cut.slabs /= 2;
  const auto blocks = [&] { return runs / cut.slabs * cut.row_parts * cut.line_parts; };
  while (blocks() < kPackBlocks && rows() >= 16) cut.row_parts *= 2;
  const int teams = kPackThreads / pack_line_threads(shape, cut);
  const int most = (pack_lines(shape) + teams - 1) / teams;
  while (blocks() < kPackBlocks && cut.line_parts < most) cut.line_parts *= 2;
  if (cut.line_parts > most) cut.line_parts = most;
  return cut;
}
// Words from one output channel to the next, and from one input channel: odd, so that lanes spread over the banks.
constexpr int pack_row(const TileShape& shape) { return shape.kernel[0] * shape.kernel[1] * shape.kernel[2] | 1; }
constexpr int pack_plane(const TileShape& shape) {
  return pack_part_rows(shape, pack_cut(shape)) * pack_row(shape) | 1;
}
constexpr int pack_shared_bytes(const TileShape& shape) {
  const PackCut cut = pack_cut(shape);
  // Runs of weights as they lie have one element more for each output channel.
  return cut.slabs == 0 ? 0 : 16 * cut.slabs * pack_plane(shape) + 4 * pack_part_rows(shape, cut);
}
// Along x, of each group and block of output channels.
constexpr int pack_blocks(const TileShape& shape) {
  const PackCut cut = pack_cut(shape);
  return shape.channel_chunks() * shape.slabs / (cut.slabs > 0 ? cut.slabs : 1) * cut.row_parts * cut.line_parts;
}
