// Tensor-core tiles for sm_90a whose warps have roles: some only load (tile_stream_load.cuh), the others only multiply.
// Cells are the rows of wgmma and come from registers: fragments out of the input as it lies in shared memory, rounded
// on the way, so that nothing is put into the tile format, no thread waits for global memory, and a tap that a phase
// does not have is a product left out. The weights are the other operand, by descriptor.
//
// The config is tile.cuh's with kBackCells in bytes, multiply(), and whether the copy engine must know any tensor
// (kMaps), whether tensor copies bring the input (kTensorCopies), where weights come from (kWeights: 0 packed, 1 in
// place by threads, 2 in boxes by the copy engine for a gradient, 3 for a forward layer) and how outputs leave
// (kStores: 0 through shared memory as sums, 1 as they will lie in the tensor, 2 straight from the sums in vectors of
// channels, 3 from the sums of several blocks in such vectors).
#include "tile_stream_load.cuh"
#if kTensorCopies
#include "tile_stream_tensor.cuh"
#else
#include "tile_stream_copies.cuh"
#endif
#include "tile_stream_team.cuh"
#if kWeights == 1
#include "tile_stream_weights.cuh"
#elif kWeights == 3
#include "tile_stream_tap_boxes.cuh"
#elif kWeights == 2
#include "tile_stream_weight_boxes.cuh"
#endif

#include "tile_store.cuh"
#if kStores == 1
#include "tile_stream_store_image.cuh"
#elif kStores == 2
#include "tile_stream_store_channels.cuh"
#elif kStores == 3
#include "tile_stream_store_gather.cuh"
#endif

// The way of a warpgroup that multiplies through chunks and stages.
struct StreamReader {
  const StreamBarriers& barriers;
  unsigned input_ring;
  unsigned weight_ring;
  RingPlace<kShape.input_ring> input;
  RingPlace<kShape.weight_ring> weight;
  int chunk = 0;  // of the tile

  __device__ __forceinline__ unsigned input_stage() const {
    return input_ring + input.slot * kShape.input_stage_bytes();
  }
  // Shared-memory descriptors count in 16 bytes: start, and the step between slabs of depth.
  __device__ __forceinline__ unsigned weight_stage() const {
    return ((weight_ring + weight.slot * kShape.weight_stage_bytes()) >> 4 & 0x3fff) | kShape.weight_leading_pitch()
                                                                                           << 16;
  }

  // What an item needs to know: worked out while the products before it run, or by the compiler.
  struct Item {
    unsigned weights;  // descriptor of its first row
    int cells;         // where its cells lie in the box
    int next_cells;    // and the next item's
    bool begins_stage, ends_stage, ends_chunk;
  };
  __device__ __forceinline__ Item item_at(int item, int plane) const {
    const bool ends_chunk = item + 1 == chunk_items(plane);
    const int in_stage = item % kStageItems;
    return {weight_stage() + in_stage / kLineItems * kLine * kShape.weight_back_pitch() +
                in_stage % kLineItems * kItemSteps * kShape.weight_depth_pitch(),
            cells_of(item, plane),
            cells_of(ends_chunk ? 0 : item + 1, ends_chunk ? next_plane(plane) : plane),
            in_stage == 0,
            in_stage + 1 == kStageItems || ends_chunk,
            ends_chunk};
  }

  // Multiplies the fragments of one item while those of the next one are loaded. A warp stands still while the tensor
  // cores are busy with products of its own that it has handed over: what it loads before the last of them arrives in
  // the meantime.
  __device__ __forceinline__ void step(CellTeam& team, const CellTeam::Fragments& now, CellTeam::Fragments& next,
                                       const Item& at, int item) {
    begin_products(team, now, at, item);
    if (go_on(at)) team.load(next, input_stage(), at.next_cells, next_step(at, item));
    if constexpr (kShape.halves_items()) team.add<false>(now, at.weights, item / kLineItems);
    if (at.ends_stage) weight.advance();
  }
  // The same with one set of fragments: one half of them is loaded while the products of the other run.
  __device__ __forceinline__ void step_by_halves(CellTeam& team, CellTeam::Fragments& cells, const Item& at, int item) {
    begin_products(team, cells, at, item);
    team.load<CellTeam::kFirstFragments, CellTeam::kFragments>(cells, input_stage(), at.cells, item % kLineItems);
    team.add<false>(cells, at.weights, item / kLineItems);
    const bool goes_on = go_on(at);
    ptx::wait_for_warpgroup<1>();
    if (goes_on) team.load<0, CellTeam::kFirstFragments>(cells, input_stage(), at.next_cells, next_step(at, item));
    if (at.ends_stage) weight.advance();
  }
  // After the first half the products before this item are done, and with the first one of a stage the whole stage
  // before it.
  __device__ __forceinline__ void begin_products(CellTeam& team, const CellTeam::Fragments& cells, const Item& at,
                                                 int item) {
    if (at.begins_stage) ptx::wait_barrier(barriers.weight_full(weight.slot), kShape.keeps_weights ? 0 : weight.parity);
    team.add<true>(cells, at.weights, item / kLineItems);
    ptx::wait_for_warpgroup<1>();
    if (at.begins_stage && (item > 0 || chunk > 0)) give_back_weights();
  }
  // After a chunk's last item the next chunk must be there. Whether anything is left to load: in a loop, products
  // behind a branch would wait for what is loaded, so that after many items it is, once for nothing.
  __device__ __forceinline__ bool go_on(const Item& at) {
    if (at.ends_chunk) ++chunk;
    const bool ends_tile = at.ends_chunk && is_done();
    if (at.ends_chunk && !ends_tile) {
      give_back_input();
      wait_for_input();
    }
    return !ends_tile || (!kUnrolled && kItems * kShape.block_chunks() > kFewItems);
  }
  // The step of depth in its line that the next item is.
  static __device__ __forceinline__ int next_step(const Item& at, int item) {
    return at.ends_chunk ? 0 : (item + 1) % kLineItems;
  }
  __device__ __forceinline__ bool is_done() const { return chunk == kShape.block_chunks(); }
  static constexpr int next_plane(int plane) { return plane + 1 == kPlanes ? 0 : plane + 1; }

  // Items of a chunk, and where the cells of a distance lie in its box, in bytes: where residues differ in taps, those
  // of the one that it holds.
  static __device__ __forceinline__ int chunk_items([[maybe_unused]] int plane) {
#if kUnevenPlanes
    return (kUnrolled ? kFixedPlaneTaps[plane] : kPlaneTaps[plane]) * kLineItems;
#else
    return kItems;
#endif
  }
  static __device__ __forceinline__ int back_cells(int back, [[maybe_unused]] int plane) {
#if kUnevenPlanes
    const int index = plane * kShape.all_backs() + back;
    return kUnrolled ? kFixedPlaneCells[index] : kPlaneCells[index];
#else
    return kUnrolled ? kFixedBackCells[back] : kBackCells[back];
#endif
  }

  __device__ __forceinline__ void give_back_input() {
    ptx::arrive(barriers.input_empty(input.slot));
    input.advance();
  }
  // Those of the stage before, once another has begun or the last one is done.
  __device__ __forceinline__ void give_back_weights() {
    if (kShape.keeps_weights) return;
    ptx::arrive(barriers.weight_empty((weight.slot == 0 ? kShape.weight_ring : weight.slot) - 1));
  }

  __device__ __forceinline__ void wait_for_input() { ptx::wait_barrier(barriers.input_full(input.slot), input.parity); }
  static __device__ __forceinline__ int cells_of(int item, int plane) {
    return back_cells(first_back(item / kLineItems), plane);
  }

  // The distance whose cells come first in a line's fragments.
  static constexpr int first_back(int line) { return line * kLine + (CellTeam::line_place(0) == 0 ? 0 : kLine - 1); }

  // Items take turns with two sets of registers. Many of them that all have the same products are a loop over all
  // chunks with two in its body, which compiles soon.
  __device__ __forceinline__ void walk_items(CellTeam& team, CellTeam::Fragments& first, CellTeam::Fragments& second) {
    int item = 0;
    Item at = item_at(item, 0);
    const auto ends = [&](CellTeam::Fragments& now, CellTeam::Fragments& next) {
      step_with(team, now, next, at, item);
      item = at.ends_chunk ? 0 : item + 1;
      at = item_at(item, 0);
      return is_done();
    };
#pragma unroll 1
    while (!ends(first, second) && (kShape.takes_turns() || !ends(second, first))) {
    }
  }
  // Otherwise each item of a chunk is code of its own, and so are chunks of residues that differ in taps; where those
  // would be too many, a chunk is a loop.
  __device__ __forceinline__ void walk_chunk(CellTeam& team, CellTeam::Fragments& first, CellTeam::Fragments& second) {
    if constexpr (kShape.splits()) {
      walk_parts(team, first, second);
    } else if constexpr (kUnrolled) {
#pragma unroll
      for (int plane = 0; plane < kPlanes; ++plane) {
#pragma unroll
        for (int item = 0; item < chunk_items(plane); ++item) {
          step_in_turn(team, first, second, item, item, plane);
        }
      }
    } else {
      const int plane = chunk % kPlanes;
      const int items = chunk_items(plane);
#pragma unroll 1
      for (int item = 0; item < items; item += 2) {
        step_in_turn(team, first, second, 0, item, plane);
        step_in_turn(team, first, second, 1, item + 1, plane);
      }
    }
  }
  __device__ __forceinline__ void step_in_turn(CellTeam& team, CellTeam::Fragments& first, CellTeam::Fragments& second,
                                               int turn, int item, int plane) {
    if (turn % 2 == 0) {
      step_with(team, first, second, item_at(item, plane), item);
    } else {
      step_with(team, second, first, item_at(item, plane), item);
    }
  }
  __device__ __forceinline__ void step_with(CellTeam& team, CellTeam::Fragments& now, CellTeam::Fragments& next,
                                            const Item& at, int item) {
    if constexpr (kShape.takes_turns()) {
      step_by_halves(team, now, at, item);
    } else {
      step(team, now, next, at, item);
    }
  }

  // Where sums of a few products are kept apart, a part is the body of the loop: unrolled, several parts would have
  // registers of their own.
  __device__ __forceinline__ void walk_parts(CellTeam& team, CellTeam::Fragments& first, CellTeam::Fragments& second) {
    constexpr int kPart = kShape.part_items();
    static_assert(kPart == 1 || kPart % 2 == 0);  // each whole part begins with the same set
    constexpr int kWhole = kItems / kPart;
#pragma unroll(kUnrolled ? kWhole + 1 : 1)
    for (int part = 0; part < kWhole; ++part) walk_part<kPart>(team, first, second, part * kPart);
    if constexpr (kItems % kPart > 0) walk_part<kItems % kPart>(team, first, second, kWhole * kPart);
  }
  template <int kCount>
  __device__ __forceinline__ void walk_part(CellTeam& team, CellTeam::Fragments& first, CellTeam::Fragments& second,
                                            int begin) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) step_in_turn(team, first, second, i, begin + i, 0);
    ptx::wait_for_warpgroup<0>();
    team.keep_part();
    if constexpr (kShape.splits_late()) CellTeam::split(first, second);
  }
};

__device__ __forceinline__ void multiply_stream(CellTeam& team, StreamReader& reader) {
  CellTeam::Fragments even;
  CellTeam::Fragments other;
  CellTeam::Fragments& odd = kShape.takes_turns() ? even : other;
  reader.wait_for_input();
  team.load<0, CellTeam::kFirstFragments>(even, reader.input_stage(), StreamReader::cells_of(0, 0), 0);
  if constexpr (kShape.splits_late()) CellTeam::split(even, even);
  if constexpr (!kUnrolled && !kShape.splits() && kPlanes == 1) {
    reader.walk_items(team, even, odd);
  } else {
    // After an odd number of items the next chunk begins with the other set.
    constexpr bool kSwaps = kItems % 2 == 1 && !kShape.splits_late() && !kShape.takes_turns();
    constexpr int kTurn = kSwaps ? 2 : kUnrolled ? kPlanes : 1;
#pragma unroll 1
    for (int chunk = 0; chunk < kShape.block_chunks(); chunk += kTurn) {
      reader.walk_chunk(team, even, odd);
      if constexpr (kSwaps) {
        if (kShape.block_chunks() % 2 == 1 && chunk + 1 == kShape.block_chunks()) break;
        reader.walk_chunk(team, odd, even);
      }
    }
  }
  ptx::wait_for_warpgroup<0>();
  reader.give_back_input();
  reader.give_back_weights();
  reader.chunk = 0;
}

extern "C" __global__ void __launch_bounds__(kShape.threads(), kShape.blocks_per_multiprocessor) kClusterAttribute
    tconv_tile(const __grid_constant__ StreamParams stream) {
  const TileParams& params = tile_params(stream);
  extern __shared__ __align__(1024) unsigned char shared_memory[];
  const unsigned input_ring = ptx::shared_address(shared_memory);
  const unsigned weight_ring = input_ring + kShape.input_ring * kShape.input_stage_bytes();
  const StreamBarriers barriers{input_ring + kShape.barrier_offset()};
  if (threadIdx.x == 0) barriers.init();
  __syncthreads();

  // Every role goes through the block's tiles on its own.
  const auto for_each_tile = [&](auto&& visit) {
    // Counted after each tile rather than kept in a register that the products need.
    const auto tiles = [&] {
      return ptx::opaque(block_rows_count(params)) * boxes_count(params) * kShape.depth_blocks;
    };
#pragma unroll 1
    for (int tile = blockIdx.x; tile < tiles(); tile += gridDim.x) {
      visit(tile);
      if (!kShape.stays) break;
    }
  };
  const int loader = static_cast<int>(threadIdx.x) - kThreads;
#if kWeights == 1
  if constexpr (kShape.loads_weights()) {
    if (loader >= kStreamThreads) {
      ptx::give_registers<kShape.weight_registers()>();
      const int thread = loader - kStreamThreads;
      RingPlace<kShape.weight_ring> slot;
      if (thread == 0) prefetch_weights(params);
      for_each_tile([&](int tile) {
        const BlockPlace place = block_place(params, tile);
        load_stream_weights(params, block_rows(place.block_row), place.rank, barriers, weight_ring, thread, slot);
      });
      return;
    }
  }
#endif
  if (loader >= 0) {
    ptx::give_registers<kShape.loading_registers()>();
#if kWeights == 2
    if (kShape.rounds_boxes() && loader >= 32 && loader < kInputThreads) {
      RingPlace<kShape.weight_ring> slot;
      for_each_tile([&](int) { round_weight_boxes(barriers, weight_ring, loader - 32, slot); });
      return;
    }
#endif
    if (loader < kInputThreads) {
      RingPlace<kShape.input_ring> slot;
      for_each_tile(
          [&](int tile) { stream_input(stream, TilePlace(params, tile), barriers, input_ring, loader, slot); });
    } else if (kShape.copies_weights() && loader == kInputThreads) {
      RingPlace<kShape.weight_ring> slot;
#if kWeights >= 2
      prefetch_weights(params);
      const auto bring = [&](int tile) {
        const BlockPlace place = block_place(params, tile);
        stream_weight_boxes(stream, block_rows(place.block_row), place.rank, barriers, weight_ring, slot);
      };
#else
      ptx::wait_for_previous_kernel();
      const auto bring = [&](int tile) {
        const BlockPlace place = block_place(params, tile);
        stream_weights(params, place.block_row, place.rank, barriers, weight_ring, slot);
      };
#endif
      if (kShape.keeps_weights) {
        bring(static_cast<int>(blockIdx.x));
      } else {
        for_each_tile(bring);
      }
    }
    return;
  }
#if kWeights == 1
  if (kShape.keeps_weights && threadIdx.x < kStreamThreads) {
    RingPlace<kShape.weight_ring> slot;
    load_stream_weights(params, block_rows(0), 0, barriers, weight_ring, threadIdx.x, slot);
  }
#endif
  ptx::take_registers<kShape.multiplying_registers()>();
  StreamReader reader{barriers, input_ring, weight_ring};
  for_each_tile([&](int tile) {
    CellTeam team(params, TilePlace(params, tile).cells);
    multiply_stream(team, reader);
    // Worked out again rather than kept in registers that the products need.
    const TilePlace place(params, ptx::opaque(tile));
#if kStores == 1
    OutputImage(params, place.rows, place.cells, input_ring + kShape.staged_offset()).store(team, output_map(stream));
#elif kStores == 2
    store_directly(VectorStore(params, place.rows, place.cells, input_ring + kShape.pipeline_bytes()), team);
#elif kStores == 3
    sync_storing();
    store_gathered(params, place, team, input_ring);
#else
    if (!kShape.stays) sync_storing();
    store_block(params, place.rows, place.cells, team, place.rank, shared_memory);
#endif
  });
  if (kShape.sends()) ptx::wait_for_bulk_reads();  // before the block's shared memory is another's
}
