// Weights into the order in which the blocks of tile_block.cuh read them: [block row][chunk][back][slab][row][vector].
// Where factors are split, slabs of small parts follow those of big ones.
//
// A block (pack_cut) reads weights as they lie in memory and writes them as cells. Where they don't fit shared memory
// they are read in place. The config says how they lie. kDenseTaps: the taps one after the other. kRuns: so do the
// summed channels, for each row, from a multiple of 16 bytes on if the tensor begins at one; kRowRuns: so do the rows,
// for each summed channel. kOrder: what neighbouring threads read otherwise.
#include "split.cuh"
#include "tile_element.cuh"
#include "tile_pack_params.cuh"
#include "tile_weights.cuh"

constexpr PackCut kCut = pack_cut(kShape);
constexpr bool kStaged = kCut.slabs > 0;
constexpr int kSlabs = kStaged ? kCut.slabs : 1;  // of a block
constexpr int kRows = pack_part_rows(kShape, kCut);
constexpr int kVector = kShape.vector();
constexpr int kIns = kSlabs * kVector;
constexpr int kTaps = kShape.kernel[0] * kShape.kernel[1] * kShape.kernel[2];
constexpr int kRow = pack_row(kShape);
constexpr int kPlane = pack_plane(kShape);

// Loads that a thread has under way; from sm_100 on the assembler would spill so many.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
constexpr int kLoadsAtOnce = 8;
#else
constexpr int kLoadsAtOnce = 16;
#endif

// 16 bytes of a run, in words: elements of two bytes would have a register each.
constexpr int kRunVector = 16 / static_cast<int>(sizeof(Element));
__device__ __forceinline__ Element element_of(const Cell& vector, int index) {
  if constexpr (sizeof(Element) == 2) {
    return static_cast<Element>(vector.word[index / 2] >> index % 2 * 16);
  } else {
    return __uint_as_float(vector.word[index]);
  }
}

// Runs of the weights of a block's input channels, which wait as they lie.
constexpr int kReadTaps = kShape.kernel[0] * kShape.kernel[1] * kShape.window_taps;
constexpr int kRun = kIns / kShape.window * kReadTaps;
constexpr bool kTakesRuns = kRuns && kStaged && kRun % kRunVector == 0 && kShape.channels % kIns == 0 &&
                            (kShape.window == 1 || kIns % (2 * kVector) == 0);
constexpr int kRunPitch = kRun | 1;
constexpr bool kTakesRowRuns = kRowRuns && kStaged && kShape.window == 1 && kRows * kTaps % kRunVector == 0 &&
                               kShape.block_channels * kTaps % kRunVector == 0;

// Where a tap of an input channel of the block is in its run; -1: beyond the last tap.
__device__ __forceinline__ int place_in_run(int in_channel, int tap) {
  const int channel = kShape.windowed(in_channel);
  const int column = tap % kShape.kernel[2] * kShape.window + channel % kShape.window;
  if (column >= kShape.window_taps) return -1;
  return channel / kShape.window * kReadTaps + tap / kShape.kernel[2] * kShape.window_taps + column;
}

__device__ __forceinline__ void put(Cell* out, const Cell& cell) {
  if constexpr (kShape.splits()) {
    const SplitCell split(cell);
    out[0] = split.big;
    out[kShape.slabs * kShape.rows()] = split.small;
  } else {
    out[0] = cell;
  }
}

// All of a block's loads numbered: some of each thread's are under way at once, then stored.
template <int kAtOnce, int kCount, typename Value, typename Load, typename Store>
__device__ __forceinline__ void stage_all(const Load& load, const Store& store) {
  constexpr int kTurn = kAtOnce * kPackThreads;
#pragma unroll 1
  for (int first = threadIdx.x; first < kCount; first += kTurn) {
    Value values[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int index = first + i * kPackThreads;
      values[i] = index < kCount ? load(index) : Value{};
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int index = first + i * kPackThreads;
      if (index < kCount) store(index, values[i]);
    }
  }
}

// The weights of a block: some summed channels, some rows, all taps.
struct PackBlock {
  const TileParams& params;
  Element* staged;  // [summed channel][row][tap], or runs
  int first_channel;
  const Element* weight;  // of the group's summed channel 0 and the block's first row
  int rows;               // that exist; the rest of a block is zeros

  __device__ __forceinline__ Element load(int v, int row, int tap) const {
    const int channel = kShape.windowed(first_channel + v);
    const int column = tap % kShape.kernel[2] * kShape.window + channel % kShape.window;
    if (channel >= kShape.channels || row >= rows || column >= kShape.window_taps) return Element(0);
    const long long position = kDenseTaps && kShape.window == 1
                                   ? tap * params.weight_strides[4]
                                   : tap / (kShape.kernel[2] * kShape.kernel[1]) * params.weight_strides[2] +
                                         tap / kShape.kernel[2] % kShape.kernel[1] * params.weight_strides[3] +
                                         column * params.weight_strides[4];
    return weight[channel / kShape.window * params.weight_strides[0] + row * params.weight_strides[1] + position];
  }
  __device__ __forceinline__ bool is_aligned() const {
    return reinterpret_cast<unsigned long long>(params.weight) % 16 == 0;
  }

  __device__ __forceinline__ void stage_runs() const {
    const Element* const runs = weight + first_channel / kShape.window * params.weight_strides[0];
    const int existing = first_channel < kShape.channels ? rows : 0;
    if (is_aligned()) {
      constexpr int kPieces = kRun / kRunVector;
      stage_all<kLoadsAtOnce / 2, kRows * kPieces, Cell>(
          [&](int i) {
            const int row = i / kPieces;
            if (row >= existing) return Cell{};
            return *reinterpret_cast<const Cell*>(runs + row * params.weight_strides[1] + i % kPieces * kRunVector);
          },
          [&](int i, const Cell& vector) {
            Element* const to = staged + i / kPieces * kRunPitch + i % kPieces * kRunVector;
#pragma unroll
            for (int v = 0; v < kRunVector; ++v) to[v] = element_of(vector, v);
          });
    } else {
      stage_all<kLoadsAtOnce, kRows * kRun, Element>(
          [&](int i) {
            return i / kRun < existing ? runs[i / kRun * params.weight_strides[1] + i % kRun] : Element(0);
          },
          [&](int i, Element value) { staged[i / kRun * kRunPitch + i % kRun] = value; });
    }
  }

  // A run is all rows of a summed channel.
  __device__ __forceinline__ void stage_row_runs() const {
    const int existing = rows * kTaps;
    const auto run_of = [&](int v) { return weight + (first_channel + v) * params.weight_strides[0]; };
    const auto place = [](int v, int i) { return v * kPlane + (kRow == kTaps ? i : i / kTaps * kRow + i % kTaps); };
    if (is_aligned()) {
      constexpr int kPieces = kRows * kTaps / kRunVector;
      stage_all<kLoadsAtOnce / 2, kIns * kPieces, Cell>(
          [&](int i) {
            const int v = i / kPieces;
            const int first = i % kPieces * kRunVector;
            if (first_channel + v >= kShape.channels || first >= existing) return Cell{};
            if constexpr (kShape.out_channels % kRunVector * kTaps % kRunVector != 0) {
              if (first + kRunVector > existing) {
                Element values[kRunVector];
#pragma unroll
                for (int e = 0; e < kRunVector; ++e) {
                  values[e] = first + e < existing ? run_of(v)[first + e] : Element(0);
                }
                return make_cell(values);
              }
            }
            return *reinterpret_cast<const Cell*>(run_of(v) + first);
          },
          [&](int i, const Cell& vector) {
            const int first = i % kPieces * kRunVector;
#pragma unroll
            for (int e = 0; e < kRunVector; ++e) staged[place(i / kPieces, first + e)] = element_of(vector, e);
          });
    } else {
      constexpr int kLength = kRows * kTaps;
      stage_all<kLoadsAtOnce, kIns * kLength, Element>(
          [&](int i) {
            const bool exists = first_channel + i / kLength < kShape.channels && i % kLength < existing;
            return exists ? run_of(i / kLength)[i % kLength] : Element(0);
          },
          [&](int i, Element value) { staged[place(i / kLength, i % kLength)] = value; });
    }
  }

  __device__ __forceinline__ void stage_elements() const {
    struct Place {
      int v, row, tap;
    };
    const auto place_of = [](int i) {
      switch (kOrder) {
        case PackOrder::rows: return Place{i / (kTaps * kRows), i % kRows, i / kRows % kTaps};
        case PackOrder::summed: return Place{i % kIns, i / (kIns * kTaps), i / kIns % kTaps};
        case PackOrder::taps_of_summed: return Place{i / kTaps % kIns, i / (kIns * kTaps), i % kTaps};
        default: return Place{i / (kTaps * kRows), i / kTaps % kRows, i % kTaps};
      }
    };
    stage_all<kLoadsAtOnce, kIns * kRows * kTaps, Element>(
        [&](int i) {
          const Place at = place_of(i);
          return load(at.v, at.row, at.tap);
        },
        [&](int i, Element value) {
          const Place at = place_of(i);
          staged[at.v * kPlane + at.row * kRow + at.tap] = value;
        });
  }

  __device__ __forceinline__ void stage() const {
    if constexpr (kTakesRuns) {
      stage_runs();
    } else if constexpr (kTakesRowRuns) {
      stage_row_runs();
    } else {
      stage_elements();
    }
    __syncthreads();
  }

  // A cell's elements: a vector of summed channels. A negative tap stands for none.
  __device__ __forceinline__ void read(Element (&values)[kVector], int slab, int row, int tap) const {
#pragma unroll
    for (int v = 0; v < kVector; ++v) {
      const int in_channel = slab * kVector + v;
      if constexpr (kTakesRuns) {
        const int place = tap < 0 ? -1 : place_in_run(in_channel, tap);
        values[v] = place < 0 ? Element(0) : staged[row * kRunPitch + place];
      } else {
        values[v] = tap < 0   ? Element(0)
                    : kStaged ? staged[in_channel * kPlane + row * kRow + tap]
                              : load(in_channel, row, tap);
      }
    }
  }
};

// Four blocks per multiprocessor: without a number the assembler prefers occupancy and spills.
extern "C" __global__ void __launch_bounds__(kPackThreads, 4)
    tconv_tile_pack(const __grid_constant__ TileParams params, Cell* packed) {
  extern __shared__ __align__(16) unsigned char shared_memory[];
  ptx::let_next_kernel_start();
  constexpr int kParts = kCut.row_parts * kCut.line_parts;
  const int first_slab = blockIdx.x / kParts * kSlabs;  // of the group's channels, chunks included
  const int first_row = blockIdx.x % kCut.row_parts * kRows;
  const int line_part = blockIdx.x / kCut.row_parts % kCut.line_parts;
  const int channel_block = blockIdx.y;
  const int group = blockIdx.z;
  const int first_out = channel_block * kShape.block_channels + first_row;
  const int part_rows = min(kRows, kShape.block_channels - first_row);
  const PackBlock block = {params, reinterpret_cast<Element*>(shared_memory), first_slab * kVector,
                           static_cast<const Element*>(params.weight) + group * params.weight_group_stride +
                               first_out * params.weight_strides[1],
                           min(part_rows, kShape.out_channels - first_out)};
  if constexpr (kStaged) block.stage();

  // The last stage of the last block is copied whole: what follows it must be something, so that nothing uninitialised
  // is read.
  if (kShape.packed_tail_bytes() > 0 && blockIdx.x == 0 && blockIdx.y == 0 && blockIdx.z == 0) {
    const int block_rows_count = params.groups * kShape.channel_blocks() * kShape.all_residue_blocks();
    Cell* tail = packed + block_rows_count * (kShape.packed_bytes() / 16);
    for (int i = threadIdx.x; i < kShape.packed_tail_bytes() / 16; i += kPackThreads) tail[i] = Cell{};
  }

  // A line is the output channels of one phase at one distance; a team of threads takes a line. (A gradient has one
  // phase, and lines for each group of planes.)
  constexpr int kAcross = pack_line_threads(kShape, kCut);
  constexpr int kRowsAtOnce = kStaged ? 1 : kLoadsAtOnce / kVector;
  constexpr int kLines = kShape.all_backs() * kShape.all_slots();
  constexpr int kResidueBlocks = kShape.all_residue_blocks();
  constexpr int kGroups = kShape.all_plane_groups();
  const int lane = threadIdx.x % kAcross;
  const int first_line = (line_part * kPackThreads + threadIdx.x) / kAcross;
  for (int line = first_line; line < kResidueBlocks * kGroups * kLines;
       line += kCut.line_parts * kPackThreads / kAcross) {
    const int slot = line % kShape.all_slots();
    const int back = line / kShape.all_slots() % kShape.all_backs();
    const int block_row =
        (group * kResidueBlocks + line / (kLines * kGroups)) * kShape.channel_blocks() + channel_block;
    const int planes = line / kLines % kGroups;
    const int chunk = first_slab / kShape.slabs * kGroups + planes;
    const int slots[3] = {slot / (kShape.slots[2] * kShape.slots[1]), slot / kShape.slots[2] % kShape.slots[1],
                          slot % kShape.slots[2]};
    const int tap =
        kShape.gradient ? gradient_tap_of(plane_group(planes), back) : tap_of(block_rows(block_row), slots, back);
    // Residues that differ in taps: nobody reads what would follow a residue's own.
    if (!kShape.even_planes() && tap < 0) continue;
    const long long stage = (static_cast<long long>(block_row) * kShape.chunks() + chunk) * kShape.all_backs() + back;
    Cell* out = packed + (stage * kShape.weight_parts() * kShape.slabs + first_slab % kShape.slabs) * kShape.rows();
#pragma unroll
    for (int slab = 0; slab < kSlabs; ++slab) {
      for (int first = lane; first < part_rows; first += kAcross * kRowsAtOnce) {
        Element values[kRowsAtOnce][kVector];
#pragma unroll
        for (int i = 0; i < kRowsAtOnce; ++i) block.read(values[i], slab, first + i * kAcross, tap);
#pragma unroll
        for (int i = 0; i < kRowsAtOnce; ++i) {
          const int row = first + i * kAcross;
          if (row < part_rows) {
            put(out + slab * kShape.rows() + slot * kShape.block_channels + kShape.row_of_channel(first_row + row),
                make_cell(values[i]));
          }
        }
      }
      // Rows that only fill up the last tile.
      for (int row = kShape.all_slots() * kShape.block_channels + lane;
           slot == 0 && first_row == 0 && row < kShape.rows(); row += kAcross) {
        put(out + slab * kShape.rows() + row, Cell{});
      }
    }
  }
}
