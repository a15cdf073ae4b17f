// Tensor-core tiles for sm_90a whose warps have roles: some only load (tile_stream_load.cuh), the others only multiply.
// Cells are the rows of wgmma and come from registers: fragments out of the input as it lies in shared memory, rounded
// on the way, so that nothing is put into the tile format, no thread waits for global memory, and a tap that a phase
// does not have is a product left out. The weights are the other operand, by descriptor.
//
// The config is tile.cuh's with kBackCells in bytes, and multiply().
#include "tile_stream_load.cuh"

constexpr int kThreads = kShape.multiplying_threads();
constexpr int kRowTiles = kShape.row_tiles;
constexpr int kColumnTiles = kShape.column_tiles;
constexpr int kSteps = kShape.slabs / 2;
constexpr int kItems = kShape.all_backs() * kSteps;  // of a chunk: one step of depth at one distance
constexpr int kStageItems = kShape.stage_backs * kSteps;
// Unrolled, an item's place and missing taps are known to the compiler.
constexpr bool kUnrolled = !kShape.all_taps || kItems <= 40;
// Fragments alternate between two sets of registers. Where a chunk has an odd number of items, the products under way
// come to an end before the next chunk begins with the first set again.
constexpr bool kDrains = kItems % 2 == 1;

struct CellTeam {
  static constexpr int kCellTiles = kShape.column_tiles / 8;  // of 64 cells
  static constexpr int kOctets = kShape.rows() / 8;
  static constexpr int kUnitOctets = kShape.row_unit / 8;

  float sum[kCellTiles][kRowTiles][kUnitOctets][4] = {};
  unsigned at[kCellTiles][2];  // bytes from the box's first element to this thread's two cells and first channel
  int first_column;
  static constexpr int depth_team = 0;

  __device__ __forceinline__ CellTeam(const TileParams& params, const BlockCells& cells) {
    const int lane = threadIdx.x % 32;
    const int team = __shfl_sync(~0u, threadIdx.x / 128, 0);
    first_column = team * kShape.column_tiles * 8;
    const int channel =
        kShape.input_channels_last ? lane % 4 * 4 : lane % 4 * (4 / kShape.element_bytes) * kShape.channel_pitch();
#pragma unroll
    for (int i = 0; i < kCellTiles; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        int cell = column(i) + half * 8;
        if (cell >= kShape.cells()) cell = 0;
        const int w = cell % kShape.tile[3];
        cell /= kShape.tile[3];
        const int h = cell % kShape.tile[2];
        cell /= kShape.tile[2];
        const int d = cell % kShape.tile[1];
        const int n = cell / kShape.tile[1];
        at[i][half] = channel + box_lead(params, cells) * kShape.element_bytes +
                      w * kShape.cell_step(2) * kShape.box_step(2) + h * kShape.cell_step(1) * kShape.box_step(1) +
                      (d * kShape.cell_step(0) + n * kShape.box(0)) * kShape.box_step(0);
      }
    }
  }

  // The first of this thread's two cells of a tile; the other is eight cells further.
  __device__ __forceinline__ int column(int tile) const {
    return first_column + tile * 64 + threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4;
  }
  __device__ __forceinline__ const float (&octet(int tile, int index) const)[4] {
    return sum[tile][index / kUnitOctets][index % kUnitOctets];
  }

  using Fragments = unsigned[kCellTiles][4];

  // Rows of a fragment are cells, its columns channels: two words each, four channels (or eight, in pairs) apart.
  __device__ __forceinline__ void load(Fragments& out, unsigned stage, int offset, int step) const {
#pragma unroll
    for (int i = 0; i < kCellTiles; ++i) {
#pragma unroll
      for (int word = 0; word < 4; ++word) {
        const unsigned cell = stage + at[i][word % 2] + offset;
        if constexpr (kShape.input_channels_last) {
          out[i][word] = rounded(ptx::load_shared_32(cell + step * 32 + word / 2 * 16));
        } else if constexpr (kShape.element_bytes == 4) {
          out[i][word] = rounded(ptx::load_shared_32(cell + (step * 8 + word / 2 * 4) * kShape.channel_pitch()));
        } else {
          const unsigned pair = cell + (step * 16 + word / 2 * 8) * kShape.channel_pitch();
          out[i][word] = ptx::load_shared_16(pair) | ptx::load_shared_16(pair + kShape.channel_pitch()) << 16;
        }
      }
    }
  }
  static __device__ __forceinline__ unsigned rounded(unsigned word) {
    return kRoundsToTf32 ? ptx::round_to_tf32(__uint_as_float(word)) : word;
  }

  // The products of one item; `weights` is the descriptor of its stage's first row.
  __device__ __forceinline__ void add(const Fragments& cells, unsigned weights, int item, unsigned tiles) {
    const unsigned b = weights + item / kSteps % kShape.stage_backs * kShape.weight_back_pitch() +
                       item % kSteps * 2 * kShape.weight_slab_pitch();
    ptx::fence_warpgroup();
#pragma unroll
    for (int tile = 0; tile < kRowTiles; ++tile) {
      if (!kShape.all_taps && (tiles >> tile & 1) == 0) continue;
#pragma unroll
      for (int i = 0; i < kCellTiles; ++i) {
        multiply(sum[i][tile], cells[i], 8ULL << 32 | (b + tile * kShape.row_unit));
      }
    }
    ptx::commit_warpgroup();
  }
};

#include "tile_store.cuh"

// The way of a warpgroup that multiplies through chunks and stages.
struct StreamReader {
  const StreamBarriers& barriers;
  unsigned input_ring;
  unsigned weight_ring;
  RingPlace<kShape.input_ring> input;
  RingPlace<kShape.weight_ring> weight;
  int released = 0;  // the slot of weights to give back next
  int chunk = 0;

  __device__ __forceinline__ unsigned input_stage() const {
    return input_ring + input.slot * kShape.input_stage_bytes();
  }
  // Shared-memory descriptors count in 16 bytes: start, and the step between slabs of depth.
  __device__ __forceinline__ unsigned weight_stage() const {
    return ((weight_ring + weight.slot * kShape.weight_stage_bytes()) >> 4 & 0x3fff) | kShape.weight_slab_pitch() << 16;
  }

  static __device__ __forceinline__ void give_back(unsigned barrier) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) ptx::arrive(barrier);
  }

  // One item: multiplies its fragments while those of the next one are loaded.
  __device__ __forceinline__ void step(CellTeam& team, const CellTeam::Fragments& now, CellTeam::Fragments& next,
                                       int item) {
    const bool begins_stage = item % kStageItems == 0;
    if (begins_stage) ptx::wait_barrier(barriers.weight_full(weight.slot), weight.parity);
    team.add(now, weight_stage(), item, kUnrolled ? kFixedBackRows[item / kSteps] : ~0u);
    const bool ends_chunk = item + 1 == kItems;
    if (kDrains && ends_chunk) {
      ptx::wait_for_warpgroup<0>();
    } else {
      ptx::wait_for_warpgroup<1>();
    }
    // The products before this item are done, and with the first one of a stage the whole stage before it.
    if (begins_stage && (item > 0 || chunk > 0)) {
      give_back(barriers.weight_empty(released));
      released = released + 1 == kShape.weight_ring ? 0 : released + 1;
    }
    if ((item + 1) % kStageItems == 0 || ends_chunk) weight.advance();
    if (!ends_chunk) {
      const int back = (item + 1) / kSteps;
      team.load(next, input_stage(), kUnrolled ? kFixedBackCells[back] : kBackCells[back], (item + 1) % kSteps);
      return;
    }
    if (++chunk == kShape.block_chunks()) return;
    give_back(barriers.input_empty(input.slot));
    input.advance();
    begin(team, next);
  }

  // The first fragments of a chunk.
  __device__ __forceinline__ void begin(CellTeam& team, CellTeam::Fragments& first) {
    ptx::wait_barrier(barriers.input_full(input.slot), input.parity);
    team.load(first, input_stage(), kFixedBackCells[0], 0);
  }
};

__device__ __forceinline__ void multiply_stream(CellTeam& team, StreamReader& reader) {
  CellTeam::Fragments even;
  CellTeam::Fragments odd;
  reader.begin(team, even);
#pragma unroll 1
  for (int chunk = 0; chunk < kShape.block_chunks(); ++chunk) {
    if constexpr (kUnrolled) {
#pragma unroll
      for (int item = 0; item + 1 < kItems; item += 2) {
        reader.step(team, even, odd, item);
        reader.step(team, odd, even, item + 1);
      }
    } else {
#pragma unroll 1
      for (int item = 0; item + 1 < kItems; item += 2) {
        reader.step(team, even, odd, item);
        reader.step(team, odd, even, item + 1);
      }
    }
    if (kDrains) reader.step(team, even, even, kItems - 1);
  }
  ptx::wait_for_warpgroup<0>();
}

extern "C" __global__ void __launch_bounds__(kShape.threads(), kShape.blocks_per_multiprocessor) kClusterAttribute
    tconv_tile(const __grid_constant__ TileParams params) {
  extern __shared__ __align__(128) unsigned char shared_memory[];
  const unsigned input_ring = ptx::shared_address(shared_memory);
  const unsigned weight_ring = input_ring + kShape.input_ring * kShape.input_stage_bytes();
  const StreamBarriers barriers{input_ring + kShape.barrier_offset()};
  if (threadIdx.x == 0) barriers.init();
  __syncthreads();

  const BlockPlace place = block_place(params);
  const BlockRows rows = block_rows(params, place.block_row);
  const BlockCells cells = block_cells(params, place.cells);
  const int loader = static_cast<int>(threadIdx.x) - kThreads;
  if (loader >= 0) {
    ptx::give_registers<kShape.loading_registers()>();
    if (loader < kInputThreads) {
      stream_input(params, rows, cells, place.rank, barriers, input_ring, loader);
    } else if (loader == kInputThreads) {
      stream_weights(params, place.block_row, place.rank, barriers, weight_ring);
    }
    return;
  }
  ptx::take_registers<kShape.multiplying_registers()>();
  CellTeam team(params, cells);
  StreamReader reader{barriers, input_ring, weight_ring};
  multiply_stream(team, reader);
  sync_storing();
  store_block(params, rows, cells, team, place.rank, shared_memory);
}
