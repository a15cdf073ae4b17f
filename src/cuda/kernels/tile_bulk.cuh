// Packed weights brought by the copy engine of sm_90: one thread asks for a stage, a barrier in shared memory tells
// when it has arrived.
#pragma once

#include "tile_element.cuh"
#include "tile_weights.cuh"

struct BulkWeights {
  static constexpr int kRing = kShape.weight_stages();
  static constexpr int kAhead = kRing > 1 ? kRing - 1 : 1;
  static constexpr int kBytesPerBack = kShape.slabs * kShape.rows() * 16;

  const char* base;
  unsigned barriers;  // one per slot of the ring, 8 bytes each
  unsigned long long block_backs;
  StageWalk copied;  // the next stage to ask for

  __device__ __forceinline__ BulkWeights(const TileParams& params, const BlockRows& rows, int block_row, int rank,
                                         unsigned char* shared_memory)
      : base(static_cast<const char*>(params.weight) + block_row * kShape.packed_bytes() +
             rank * static_cast<long long>(kShape.block_chunks()) * kShape.all_backs() * kBytesPerBack),
        barriers(ptx::shared_address(shared_memory) + kShape.barrier_offset()),
        block_backs(backs_of(rows)),
        copied(rows) {
    if (threadIdx.x == 0) {
#pragma unroll
      for (int slot = 0; slot < kRing; ++slot) {
        ptx::init_barrier(full(slot), 1);
      }
      ptx::publish_barriers();
    }
    __syncthreads();
  }

  template <typename Stage>
  __device__ __forceinline__ void begin(Stage&& stage) {
    if (threadIdx.x != 0) return;
    ptx::wait_for_previous_kernel();
#pragma unroll
    for (int step = 0; step < kAhead; ++step) copy(stage(step));
  }

  // While `step` is multiplied: the copy for a later one sets out.
  template <typename Stage>
  __device__ __forceinline__ void start(int step, Stage&& stage) {
    if (kRing > 1 && threadIdx.x == 0) copy(stage(step + kAhead));
  }

  __device__ __forceinline__ void fetch(const TileParams&, int) const {}
  template <typename Stage>
  __device__ __forceinline__ void store(int, Stage&&) const {}

  // Until the weights of `step` have arrived.
  __device__ __forceinline__ void wait(int step) const {
    if (step < copied.total) ptx::wait_barrier(full(step % kRing), step / kRing & 1);
  }

 private:
  __device__ __forceinline__ unsigned full(int slot) const { return barriers + slot * 8; }

  __device__ __forceinline__ void copy(unsigned shared) {
    if (copied.ended()) return;
    const int slot = copied.step % kRing;
    const int first_back = copied.stage * kShape.stage_backs;
    const int backs = min(kShape.stage_backs, kShape.all_backs() - first_back);
    const char* source =
        base + (static_cast<long long>(copied.chunk) * kShape.all_backs() + first_back) * kBytesPerBack;
    copied.advance();
    if constexpr (kShape.skips_backs()) {
      const unsigned long long present = block_backs >> first_back & (backs < 64 ? (1ULL << backs) - 1 : ~0ULL);
      ptx::expect_bytes(full(slot), __popcll(present) * kBytesPerBack);
      for (int back = 0; back < backs; ++back) {
        if (present >> back & 1)
          ptx::copy_bulk(shared + back * kBytesPerBack, source + back * kBytesPerBack, kBytesPerBack, full(slot));
      }
    } else {
      ptx::expect_bytes(full(slot), backs * kBytesPerBack);
      ptx::copy_bulk(shared, source, backs * kBytesPerBack, full(slot));
    }
  }
};
