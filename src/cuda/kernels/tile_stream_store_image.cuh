// Outputs of a streaming block through shared memory, as they will lie in the tensor: rounded, the phases of a row side
// by side. They leave it in vectors, and rows that follow each other in the tensor as one.
#pragma once

// Of the threads that store together, how many take neighbouring places; the others take other channels.
constexpr int threads_across(int threads, int places) {
  int across = places < threads ? places : threads;
  while (threads % across != 0) ++across;
  return across;
}

struct OutputImage {
  static constexpr int kBytes = kShape.element_bytes;
  static constexpr int kChannelPitch = kShape.image_pitch();
  static constexpr int kOctets = (kTurnChannels + 7) / 8;  // of a phase's channels, in a turn
  static constexpr int kRow = kShape.image_row;
  static constexpr int kVector = kShape.row_vector;
  static constexpr int kLine = kShape.image_line();
  // Where columns are outputs, a team stores its own, and waits for no other.
  static constexpr bool kAlone = kShape.image_of_columns();
  static constexpr int kStoring = kAlone ? 128 : kThreads;
  // Neighbouring threads take neighbouring vectors, of the same channels.
  static constexpr int kPlaces = (kAlone ? kShape.column_tiles * 8 : kShape.image_outputs()) / kVector;
  static constexpr int kAcross = threads_across(kStoring, kPlaces);

  const TileParams& params;
  const BlockRows& rows;
  const BlockCells& cells;
  unsigned image;

  __device__ __forceinline__ OutputImage(const TileParams& tile_params, const BlockRows& block_rows,
                                         const BlockCells& block_cells, unsigned shared)
      : params(tile_params), rows(block_rows), cells(block_cells), image(shared) {}

  __device__ __forceinline__ void store(const CellTeam& team, const TensorMap* map) const {
    Element* output =
        static_cast<Element*>(params.output) + cells.first[0] * params.output_strides[0] +
        (static_cast<long long>(rows.group) * kShape.out_channels + rows.first_channel) * params.output_strides[1];
    const int thread = ptx::opaque(threadIdx.x % kStoring);  // or places would be kept from tile to tile
    if (!kShape.stays) sync_storing();                       // what is there has been multiplied
    constexpr int kTurns = kShape.block_channels / kTurnChannels;
    // A loop, so that the code that copies is there once and compiles soon.
#pragma unroll 1
    for (int turn = 0; turn < kTurns; ++turn) {
      if (kShape.sends()) ptx::wait_for_bulk_reads();
      // What is there must have left.
      if (kShape.stays || turn > 0) sync();
      // Which sums a turn takes must be known to the compiler.
#pragma unroll
      for (int known = 0; known < kTurns; ++known) {
        if (known == turn) stage_turn(team, known);
      }
      if (kShape.sends()) ptx::fence_for_async_proxy();
      sync();
      const int channels = min(kTurnChannels, kShape.out_channels - rows.first_channel - turn * kTurnChannels);
      if constexpr (kShape.sends_boxes) {
        if (thread == 0) send_box(team, map);
      } else if constexpr (kShape.sends_lines) {
        send_pieces(team, channels, output);
      } else {
#pragma unroll 1
        for (int place = thread % kAcross; place < kPlaces; place += kAcross)
          copy_out(site_of(team, place * kVector), channels, output);
      }
      output += kTurnChannels * params.output_strides[1];
    }
  }

 private:
  static __device__ __forceinline__ void sync() {
    if constexpr (kAlone) {
      ptx::sync_warpgroup(threadIdx.x / 128);
    } else {
      sync_storing();
    }
  }

  // Of two neighbouring channels of each eight, those of a thread.
  struct Bias {
    float add[kShape.bias ? kOctets : 1][2];

    __device__ __forceinline__ Bias(const OutputImage& owner, int turn) {
      const int lane_channel = threadIdx.x % 4 * 2;
#pragma unroll
      for (int i = 0; kShape.bias && i < kOctets * 2; ++i)
        add[i / 2][i % 2] = bias_of(owner.params, owner.rows, turn * kTurnChannels + i / 2 * 8 + lane_channel + i % 2);
    }
    __device__ __forceinline__ float operator()(float sum, int octet, int side) const {
      if constexpr (kShape.bias) {
        return sum + add[octet][side];
      } else {
        return sum;
      }
    }
  };

  static __device__ __forceinline__ unsigned pair(float low, float high) {
    return kShape.math == TileMath::f16 ? ptx::pack_f16(low, high) : ptx::pack_bf16(low, high);
  }

  __device__ __forceinline__ void stage_turn(const CellTeam& team, int turn) const {
    if constexpr (kAlone) {
      stage_columns(team, turn);
    } else {
      stage_phases(team, turn);
    }
  }
  // One output for each cell. Of two-byte elements eight cells of a channel are stored at once; columns without a cell
  // have a place, too.
  __device__ __forceinline__ void stage_columns(const CellTeam& team, int turn) const {
    const Bias bias(*this, turn);
    const int lane = ptx::opaque(threadIdx.x % 32);  // or places would be kept in registers from turn to turn
    const int column = team.first_column + threadIdx.x / 32 % 4 * 16;
    if constexpr (kBytes == 2) {
      const int channel = lane % 8 + lane / 16 * 8;
      // Of a box, eight cells of a channel lie where the copy engine looks for them: that spreads channels over the
      // banks.
      const unsigned at = kShape.sends_boxes ? box_of(team) + channel * kChannelPitch +
                                                   ((threadIdx.x / 32 % 4 * 2 + lane / 8 % 2) ^ lane % 8) * 16
                                             : image + channel * kChannelPitch + (column + lane / 8 % 2 * 8) * kBytes;
      const auto word = [&](int tile, int octet, int half) {
        const float (&sums)[4] = team.octet(tile, turn * kOctets + octet);
        return pair(bias(sums[half * 2], octet, 0), bias(sums[half * 2 + 1], octet, 1));
      };
#pragma unroll
      for (int octet = 0; octet < kOctets; octet += 2) {
#pragma unroll
        for (int tile = 0; tile < CellTeam::kCellTiles; ++tile) {
          const unsigned place = at + octet * 8 * kChannelPitch + tile * 64 * kBytes;
          if (octet + 1 < kOctets) {
            const unsigned words[4] = {word(tile, octet, 0), word(tile, octet, 1), word(tile, octet + 1, 0),
                                       word(tile, octet + 1, 1)};
            ptx::store_matrices_transposed(place, words);
          } else {
            const unsigned words[2] = {word(tile, octet, 0), word(tile, octet, 1)};
            ptx::store_matrices_transposed(place, words);
          }
        }
      }
    } else {
      const unsigned at = image + lane % 4 * 2 * kChannelPitch + (column + lane / 4) * kBytes;
#pragma unroll
      for (int octet = 0; octet < kOctets; ++octet) {
#pragma unroll
        for (int i = 0; i < CellTeam::kCellTiles * 4; ++i) {
          const float sum[1] = {bias(team.octet(i / 4, turn * kOctets + octet)[i % 4], octet, i % 2)};
          stage(at + (octet * 8 + i % 2) * kChannelPitch + (i / 4 * 64 + i / 2 % 2 * 8) * kBytes, sum);
        }
      }
    }
  }

  // Several outputs for each cell: neighbouring phases of the width at once, where a row begins with a whole cell.
  __device__ __forceinline__ void stage_phases(const CellTeam& team, int turn) const {
    constexpr bool kLeavesOut = kWidths != kRow;
    constexpr int kMost = kLeavesOut ? 1 : kShape.vector();
    constexpr int kAtOnce = kShape.span[2] % kMost == 0             ? kMost
                            : kMost >= 4 && kShape.span[2] % 4 == 0 ? 4
                            : kMost >= 2 && kShape.span[2] % 2 == 0 ? 2
                                                                    : 1;
    const Bias bias(*this, turn);
    const int lane = ptx::opaque(threadIdx.x % 32);
#pragma unroll
    for (int i = 0; i < CellTeam::kCellTiles * 2; ++i) {
      const CellPlace place = cell_place(ptx::opaque(team.column(i / 2)) + i % 2 * 8);
      if (!place.exists) continue;
      const auto& [n, d, h, w] = place.at;
      const int row = (n * kDepths + d * kShape.span[0]) * kHeights + h * kShape.span[1];
      const int first = w * kShape.span[2] - kShape.image_lead;
      const unsigned at = image + (row * kRow + first) * kBytes + lane % 4 * 2 * kChannelPitch;
#pragma unroll
      for (int slot = 0; slot < kShape.all_slots(); slot += kAtOnce) {
        const int phase = slot % kShape.slots[2];
        const int height = slot / kShape.slots[2] % kShape.slots[1];
        const int depth = slot / kShape.slots[2] / kShape.slots[1];
        if (kLeavesOut && static_cast<unsigned>(first + phase) >= static_cast<unsigned>(kRow)) continue;
#pragma unroll
        for (int j = 0; j < kOctets * 2; ++j) {
          float values[kAtOnce];
#pragma unroll
          for (int k = 0; k < kAtOnce; ++k) {
            const int octet = (slot + k) * kShape.block_channels / 8 + turn * kOctets + j / 2;
            values[k] = bias(team.octet(i / 2, octet)[i % 2 * 2 + j % 2], j / 2, j % 2);
          }
          stage(at + ((depth * kHeights + height) * kRow + phase) * kBytes + (j / 2 * 8 + j % 2) * kChannelPitch,
                values);
        }
      }
    }
  }
  template <int kCount>
  static __device__ __forceinline__ void stage(unsigned place, const float (&values)[kCount]) {
    if constexpr (kBytes == 2 && kCount == 1) {
      ptx::store_shared_half(place, to_storage(values[0], Element()));
    } else {
      unsigned words[kCount * kBytes / 4];
#pragma unroll
      for (int i = 0; i < kCount * kBytes / 4; ++i) {
        if constexpr (kBytes == 2) {
          words[i] = pair(values[2 * i], values[2 * i + 1]);
        } else {
          words[i] = __float_as_uint(values[i]);
        }
      }
      ptx::store_shared(place, words);
    }
  }

  // Where an output of the image goes, counted from the team's first column, or over [sample][depth][height][width].
  struct Site {
    int from;         // elements, from the channel's first
    long long place;  // from the block's first sample and channel
    bool inside;
  };
  __device__ __forceinline__ Site site_of(const CellTeam& team, int index) const {
    Site site;
    int at[4];  // sample, depth, height, and place along a line
    if constexpr (kAlone) {
      site.from = team.first_column + index;
      const CellPlace cell = cell_place(site.from);
#pragma unroll
      for (int i = 0; i < 4; ++i) at[i] = cell.at[i];
      if (kShape.joins_rows) at[3] += at[2] * kRow;
      site.inside = cell.exists && index < kPlaces * kVector;  // those that follow are another team's
    } else {
      site.from = index;
      at[3] = index % kLine;
      at[2] = kShape.joins_rows ? 0 : index / kLine % kHeights;
      const int plane = index / (kHeights * kRow);
      at[1] = plane % kDepths;
      at[0] = plane / kDepths;
      site.inside = index < kPlaces * kVector;
    }
    const OutputSite d = output_site(params, rows, cells, 0, at[1]);
    site.place = at[0] * params.output_strides[0] + d.place;
    site.inside = site.inside && d.inside && cells.first[0] + at[0] < params.batch;
    if constexpr (kShape.joins_rows) {
      const int first = cells.first[2] * kShape.output_step(1) - output_pad(params, 1);
      const int output = first * kRow + at[3];
      site.place += output;
      site.inside = site.inside && static_cast<unsigned>(output) < static_cast<unsigned>(params.output_size[1] * kRow);
    } else {
      const OutputSite h = output_site(params, rows, cells, 1, at[2]);
      const OutputSite w = output_site(params, rows, cells, 2, at[3] + kShape.image_lead);
      site.place += h.place + w.place;
      site.inside = site.inside && h.inside && w.inside;
    }
    return site;
  }

  __device__ __forceinline__ unsigned box_of(const CellTeam& team) const {
    return image + team.first_column * kTurnChannels * kBytes;
  }
  // A team's columns by the copy engine, which leaves out what is not inside.
  __device__ __forceinline__ void send_box(const CellTeam& team, const TensorMap* map) const {
    const CellPlace cell = cell_place(team.first_column);
    if (!cell.exists) return;
    int at[5] = {0, 0, 0, rows.group * kShape.out_channels + rows.first_channel, cells.first[0] + cell.at[0]};
#pragma unroll
    for (int axis = 0; axis < 3; ++axis)
      at[2 - axis] = cells.first[1 + axis] + cell.at[1 + axis] - output_pad(params, axis);
    ptx::copy_tensor_out(map, at, box_of(team));
    ptx::commit_bulk();
  }

  // Lines by the copy engine, as far as they are inside.
  __device__ __forceinline__ void send_pieces(const CellTeam& team, int channels, Element* output) const {
    constexpr int kPiece = kShape.image_piece();
    constexpr int kPieces = kPlaces * kVector / kPiece;
    constexpr int kAxis = kShape.joins_rows ? 1 : 2;
    const int unit = kShape.joins_rows ? kRow : 1;
    const int first = (cells.first[1 + kAxis] * kShape.output_step(kAxis) - output_pad(params, kAxis)) * unit +
                      (kShape.joins_rows ? 0 : kShape.image_lead);
#pragma unroll 1
    for (int item = threadIdx.x % kStoring; item < kPieces * kTurnChannels; item += kStoring) {
      const int channel = item % kTurnChannels;
      const int piece = item / kTurnChannels * kPiece;
      const int along = first + (kAlone ? team.first_column + piece : piece) % kLine;
      const int begin = max(-along, 0);
      const int end = min(kPiece, params.output_size[kAxis] * unit - along);
      const Site site = site_of(team, piece + begin);
      if (!site.inside || channel >= channels) continue;
      ptx::copy_bulk_out(output + site.place + channel * params.output_strides[1],
                         image + channel * kChannelPitch + site.from * kBytes, (end - begin) * kBytes);
    }
    ptx::commit_bulk();
  }

  // A vector of each channel, or of some of them.
  __device__ __forceinline__ void copy_out(const Site& site, int channels, Element* output) const {
    if (!site.inside) return;
    constexpr int kTeams = kStoring / kAcross;
    constexpr int kRounds = (kTurnChannels + kTeams - 1) / kTeams;
    constexpr int kAtOnce = kRounds % 4 == 0 ? 4 : kRounds % 3 == 0 ? 3 : kRounds % 2 == 0 ? 2 : 1;
    constexpr bool kWhole = kShape.out_channels % kShape.block_channels == 0 && kTurnChannels % kTeams == 0;
    constexpr int kCopyBytes = kVector * kBytes;
    const int team = threadIdx.x % kStoring / kAcross;
    const long long stride = params.output_strides[1];
    Element* out = output + site.place + team * stride;
    unsigned from = image + site.from * kBytes + team * kChannelPitch;
#pragma unroll(kRounds <= 32 ? kRounds / kAtOnce : 4)
    for (int round = 0; round < kRounds; round += kAtOnce) {
      const auto exists = [&](int i) { return kWhole || team + (round + i) * kTeams < channels; };
      unsigned words[kAtOnce][kCopyBytes < 4 ? 1 : kCopyBytes / 4];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (exists(i)) ptx::load_shared<kCopyBytes>(from + i * kTeams * kChannelPitch, words[i]);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (exists(i)) leave(out + i * kTeams * stride, words[i]);
      }
      out += kAtOnce * kTeams * stride;
      from += kAtOnce * kTeams * kChannelPitch;
    }
  }
  template <int kWords>
  static __device__ __forceinline__ void leave(Element* out, const unsigned (&words)[kWords]) {
    if constexpr (kVector * kBytes == 2) {
      *out = static_cast<Element>(words[0]);
    } else {
      ptx::store_words(out, words);
    }
  }
};
