// The instructions that the kernels use and CUDA C++ has no word for. Nothing here includes a header.
#pragma once

// Sixteen bytes of neighbouring channels: the unit of a tile.
struct alignas(16) Cell {
  unsigned word[4];
};

namespace ptx {

__device__ __forceinline__ unsigned shared_address(const void* pointer) {
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

// The same value, of which the compiler knows nothing: it makes no second copy of the code that follows for a case that
// it could tell from the value.
__device__ __forceinline__ int opaque(int value) {
  asm volatile("" : "+r"(value));
  return value;
}

// Four 8x8 matrices of 16-bit pairs, one row of 16 bytes per lane's address.
__device__ __forceinline__ void load_matrices(unsigned (&out)[4], unsigned address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(address)
               : "memory");
}

// The same, each matrix with its rows and columns exchanged.
__device__ __forceinline__ void load_matrices_transposed(unsigned (&out)[4], unsigned address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(address)
               : "memory");
}

// The other way: matrices from registers.
__device__ __forceinline__ void store_matrices(unsigned address, const unsigned (&words)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(words[0]),
               "r"(words[1]), "r"(words[2]), "r"(words[3])
               : "memory");
}
// The same, each with its rows and columns exchanged; two take the addresses of the first
// sixteen lanes.
__device__ __forceinline__ void store_matrices_transposed(unsigned address, const unsigned (&words)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(words[0]),
               "r"(words[1]), "r"(words[2]), "r"(words[3])
               : "memory");
}
__device__ __forceinline__ void store_matrices_transposed(unsigned address, const unsigned (&words)[2]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(address), "r"(words[0]),
               "r"(words[1])
               : "memory");
}

__device__ __forceinline__ void copy_16_async(unsigned shared, const void* global) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(global) : "memory");
}

// As many bytes of the sixteen, a multiple of 4, and zeros.
__device__ __forceinline__ void copy_16_async(unsigned shared, const void* global, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global), "r"(bytes) : "memory");
}

// Bytes (4, 8 or 16, both addresses aligned to them) or zeros.
template <int kBytes>
__device__ __forceinline__ void copy_async(unsigned shared, const void* global, bool wanted) {
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global), "r"(wanted ? 16 : 0)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(shared), "l"(global), "n"(kBytes),
                 "r"(wanted ? kBytes : 0)
                 : "memory");
  }
}

__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kPending>  // groups of copies that may still be under way
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// Elements that are neighbours in memory, as words (two bytes alone in the low half of one), or zeros where `wanted` is
// zero.
template <int kBytes>
__device__ __forceinline__ void load_if(unsigned wanted, const void* global,
                                        unsigned (&out)[kBytes < 4 ? 1 : kBytes / 4]) {
  if constexpr (kBytes == 2) {
    unsigned short value;
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %1, 0; mov.b16 %0, 0; @p ld.global.nc.u16 %0, [%2]; }"
                 : "=h"(value)
                 : "r"(wanted), "l"(global));
    out[0] = value;
  } else if constexpr (kBytes == 4) {
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %1, 0; mov.b32 %0, 0; @p ld.global.nc.b32 %0, [%2]; }"
                 : "=r"(out[0])
                 : "r"(wanted), "l"(global));
  } else if constexpr (kBytes == 8) {
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, %2, 0; mov.b32 %0, 0; mov.b32 %1, 0; @p ld.global.nc.v2.b32 {%0, %1}, [%3]; }"
        : "=r"(out[0]), "=r"(out[1])
        : "r"(wanted), "l"(global));
  } else {
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, %4, 0; mov.b32 %0, 0; mov.b32 %1, 0; mov.b32 %2, 0; mov.b32 %3, 0;"
        " @p ld.global.nc.v4.b32 {%0, %1, %2, %3}, [%5]; }"
        : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
        : "r"(wanted), "l"(global));
  }
}

__device__ __forceinline__ Cell load_16(const void* global) {
  Cell cell;
  asm volatile("ld.global.nc.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(cell.word[0]), "=r"(cell.word[1]), "=r"(cell.word[2]), "=r"(cell.word[3])
               : "l"(global));
  return cell;
}

// Neighbours in memory by one store: left to itself, the compiler may take several, each with a part of every sector.
__device__ __forceinline__ void store_words(void* global, const unsigned (&words)[1]) {
  asm volatile("st.global.b32 [%0], %1;" ::"l"(global), "r"(words[0]) : "memory");
}
__device__ __forceinline__ void store_words(void* global, const unsigned (&words)[2]) {
  asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(global), "r"(words[0]), "r"(words[1]) : "memory");
}
__device__ __forceinline__ void store_words(void* global, const unsigned (&words)[4]) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(global), "r"(words[0]), "r"(words[1]), "r"(words[2]),
               "r"(words[3])
               : "memory");
}

// Neighbouring bytes as words, two alone in the low half of one.
template <int kBytes>
__device__ __forceinline__ void load_shared(unsigned shared, unsigned (&out)[kBytes < 4 ? 1 : kBytes / 4]) {
  if constexpr (kBytes == 2) {
    unsigned short value;
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(value) : "r"(shared) : "memory");
    out[0] = value;
  } else if constexpr (kBytes == 4) {
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(out[0]) : "r"(shared) : "memory");
  } else if constexpr (kBytes == 8) {
    asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(out[0]), "=r"(out[1]) : "r"(shared) : "memory");
  } else {
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(shared)
                 : "memory");
  }
}

__device__ __forceinline__ void store_16(unsigned shared, const Cell& cell) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(shared), "r"(cell.word[0]), "r"(cell.word[1]),
               "r"(cell.word[2]), "r"(cell.word[3])
               : "memory");
}

__device__ __forceinline__ void store_shared(unsigned shared, const unsigned (&words)[1]) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(shared), "r"(words[0]) : "memory");
}
__device__ __forceinline__ void store_shared(unsigned shared, const unsigned (&words)[2]) {
  asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(shared), "r"(words[0]), "r"(words[1]) : "memory");
}
__device__ __forceinline__ void store_shared(unsigned shared, const unsigned (&words)[4]) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(shared), "r"(words[0]), "r"(words[1]), "r"(words[2]),
               "r"(words[3])
               : "memory");
}
__device__ __forceinline__ void store_shared_half(unsigned address, unsigned bits) {
  asm volatile("st.shared.b16 [%0], %1;" ::"r"(address), "h"(static_cast<unsigned short>(bits)) : "memory");
}

__device__ __forceinline__ unsigned load_shared_32(unsigned address) {
  unsigned word;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(word) : "r"(address) : "memory");
  return word;
}
__device__ __forceinline__ void load_shared_64(unsigned address, unsigned (&words)[2]) {
  asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(words[0]), "=r"(words[1]) : "r"(address) : "memory");
}
__device__ __forceinline__ unsigned load_shared_16(unsigned address) {
  unsigned short bits;
  asm volatile("ld.shared.b16 %0, [%1];" : "=h"(bits) : "r"(address) : "memory");
  return bits;
}

// The same place of the shared memory of another block of the cluster.
__device__ __forceinline__ float load_from_block(unsigned address, int rank) {
  unsigned remote;
  float value;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(rank));
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(remote));
  return value;
}

__device__ __forceinline__ void load_vector_from_block(unsigned address, int rank, float (&values)[4]) {
  unsigned remote;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(rank));
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(values[0]), "=f"(values[1]), "=f"(values[2]), "=f"(values[3])
               : "r"(remote));
}

__device__ __forceinline__ void cluster_barrier() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// Barriers in shared memory: a phase ends when as many threads have arrived as init_barrier said and all the bytes have
// come that were announced with expect_bytes (which arrives, too).
__device__ __forceinline__ void init_barrier(unsigned barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void publish_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;\nfence.proxy.async.shared::cta;" ::: "memory");
}
__device__ __forceinline__ void expect_bytes(unsigned barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
__device__ __forceinline__ void arrive(unsigned barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// Arrives once all copies have come that this thread has asked for with copy_async.
__device__ __forceinline__ void arrive_after_copies(unsigned barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void wait_barrier(unsigned barrier, int parity) {
  unsigned done = 0;
  while (done == 0) {
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                 : "=r"(done)
                 : "r"(barrier), "r"(parity)
                 : "memory");
  }
}

// Bytes (a multiple of 16, both addresses too) by the copy engine, announced to a barrier.
__device__ __forceinline__ void copy_bulk(unsigned shared, const void* global, int bytes, unsigned barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared),
               "l"(global), "r"(bytes), "r"(barrier)
               : "memory");
}
// The other way. What was asked for since the last commit_bulk() is a group; a thread waits until the engine has read
// all that it has asked for.
__device__ __forceinline__ void copy_bulk_out(void* global, unsigned shared, int bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(global), "r"(shared), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void commit_bulk() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
__device__ __forceinline__ void wait_for_bulk_reads() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
// Asks the copy engine to have bytes (a multiple of 16, as the address) in the L2 cache soon.
__device__ __forceinline__ void prefetch_bulk(const void* global, unsigned bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(global), "r"(bytes) : "memory");
}
// A box of a tensor of five dimensions, announced to a barrier; `at` counts from the fastest one, and may lie outside.
__device__ __forceinline__ void copy_tensor(unsigned shared, const void* map, const int (&at)[5], unsigned barrier) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5, "
      "%6}], [%7];" ::"r"(shared),
      "l"(map), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]), "r"(at[4]), "r"(barrier)
      : "memory");
}
// The other way, as far as the box is inside: of the group that copy_bulk_out speaks of.
__device__ __forceinline__ void copy_tensor_out(const void* map, const int (&at)[5], unsigned shared) {
  asm volatile(
      "cp.async.bulk.tensor.5d.global.shared::cta.tile.bulk_group [%0, {%1, %2, %3, %4, %5}], [%6];" ::"l"(map),
      "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]), "r"(at[4]), "r"(shared)
      : "memory");
}
// A kernel that was launched while the one before it still ran waits here until its results are there. Before sm_90
// kernels of a stream never overlap.
__device__ __forceinline__ void wait_for_previous_kernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// The next kernel may be launched: all blocks of this one run already.
__device__ __forceinline__ void let_next_kernel_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Ordinary stores to shared memory, before the tensor cores read them by descriptor.
__device__ __forceinline__ void fence_for_async_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// What a warpgroup may use of the block's registers from here on, a multiple of 8.
template <int kRegisters>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

__device__ __forceinline__ void fence_warpgroup() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void commit_warpgroup() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int kPending = 0>  // groups of products that may still be under way
__device__ __forceinline__ void wait_for_warpgroup() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// A sum of products that were waited for: the compiler reads it after the wait, not before.
__device__ __forceinline__ float waited_for(float sum) {
  asm volatile("" : "+f"(sum));
  return sum;
}

// A barrier of the block's first threads alone.
template <int kThreads>
__device__ __forceinline__ void sync_first_threads() {
  asm volatile("barrier.sync 1, %0;" ::"n"(kThreads) : "memory");
}

// A barrier of one warpgroup of a block, of at most fourteen.
__device__ __forceinline__ void sync_warpgroup(int index) {
  asm volatile("barrier.sync %0, 128;" ::"r"(2 + index) : "memory");
}

// The nearest TF32 value: ties to even, as cuDNN does on sm_90, by one instruction where there is one, or away from
// zero.
__device__ __forceinline__ unsigned round_to_tf32(float value) {
  unsigned bits;
#if __CUDA_ARCH__ >= 900
  asm("cvt.rn.tf32.f32 %0, %1;" : "=r"(bits) : "f"(value));
#else
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(value));
#endif
  return bits;
}

__device__ __forceinline__ unsigned short round_to_f16(float value) {
  unsigned short bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
}

__device__ __forceinline__ unsigned short round_to_bf16(float value) {
  unsigned short bits;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
}

// Two values as the halves of a word.
__device__ __forceinline__ unsigned pack_f16(float low, float high) {
  unsigned bits;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
  return bits;
}
__device__ __forceinline__ unsigned pack_bf16(float low, float high) {
  unsigned bits;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
  return bits;
}

__device__ __forceinline__ float widen_f16(unsigned short bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}

__device__ __forceinline__ void multiply_tf32(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void multiply_bf16(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void multiply_f16(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

}  // namespace ptx
