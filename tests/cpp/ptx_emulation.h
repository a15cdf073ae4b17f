// CUDA's words and the instructions of kernels/ptx.cuh for the host compiler, on top of BlockEmulator: included in
// front of a rendered kernel, whose ptx.cuh is left out (kernel_emulator.h). Copies arrive at once; addresses of shared
// memory are distances from its start.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <type_traits>
#include <utility>
#include <vector>

#include "block_emulator.h"
#include "cpu/scalar.h"
#include "cuda/tensor_map.h"

#define __device__
#define __global__
#define __constant__
#define __grid_constant__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __shared__ static
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __syncthreads() tconv::test::BlockEmulator::barrier(tconv::test::BlockEmulator::Stop::block)
#define __syncwarp(...) tconv::test::BlockEmulator::barrier(tconv::test::BlockEmulator::Stop::warp)
#define __shfl_sync(mask, value, from) emulation::shuffle(value, from)
#define __shfl_down_sync(mask, value, by) emulation::shuffle_down(value, by)
#define __shfl_xor_sync(mask, value, by) emulation::shuffle_xor(value, by)
#define threadIdx (emulation::thread_index())
#define blockIdx (emulation::block_index())
#define gridDim (emulation::g_grid)
#define blockDim (emulation::Index3{emulation::g_threads, 1, 1})

using std::max;
using std::min;

struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(16) Cell {
  unsigned word[4];
};

inline int __popcll(unsigned long long bits) { return std::popcount(bits); }
inline int __ffsll(unsigned long long bits) { return bits == 0 ? 0 : std::countr_zero(bits) + 1; }
inline float __uint_as_float(unsigned bits) { return std::bit_cast<float>(bits); }
inline unsigned __float_as_uint(float value) { return std::bit_cast<unsigned>(value); }
template <typename T>
T __ldg(const T* pointer) {
  return *pointer;
}

namespace emulation {

struct Index3 {
  unsigned x, y, z;
};

inline Index3 g_grid{};
inline Index3 g_block{};  // the first of the running cluster
inline unsigned g_threads = 0;
inline std::size_t g_shared_bytes = 0;
inline std::vector<std::vector<Cell>> g_shared;  // per block of the cluster
constexpr std::size_t kGuardBytes = 4096;        // reads past the end are the hardware's business, writes are failures

inline unsigned rank() { return static_cast<unsigned>(tconv::test::BlockEmulator::thread()) / g_threads; }
inline Index3 thread_index() { return {static_cast<unsigned>(tconv::test::BlockEmulator::thread()) % g_threads, 0, 0}; }
inline Index3 block_index() { return {g_block.x + rank(), g_block.y, g_block.z}; }
inline unsigned char* shared_of(unsigned block) { return reinterpret_cast<unsigned char*>(g_shared[block].data()); }
inline unsigned char* shared_memory() { return shared_of(rank()); }

// A place in shared memory for an access of that many bytes.
inline unsigned char* place(unsigned address, std::size_t bytes, unsigned block = rank()) {
  if (address % bytes != 0) throw std::runtime_error("an access to shared memory is not aligned");
  if (address + bytes > g_shared_bytes + kGuardBytes) throw std::runtime_error("an access past shared memory");
  return shared_of(block) + address;
}
template <typename T>
T read(unsigned address) {
  T value;
  std::memcpy(&value, place(address, sizeof(T)), sizeof(T));
  return value;
}

template <typename T>
T shuffle(T value, int from) {
  static_assert(sizeof(T) == 4);
  const tconv::test::BlockEmulator::Exchange exchange({std::bit_cast<unsigned>(value)});
  return std::bit_cast<T>(exchange.lane(from & 31)[0]);
}
inline int lane() { return tconv::test::BlockEmulator::thread() % 32; }
template <typename T>
T shuffle_down(T value, int by) {
  return shuffle(value, lane() + by < 32 ? lane() + by : lane());
}
template <typename T>
T shuffle_xor(T value, int by) {
  return shuffle(value, lane() ^ by);
}

enum class Type { tf32, f16, bf16 };

// Element `index` of a row of operands packed into 32-bit words: the tensor cores ignore the low bits of a TF32
// operand.
template <Type kType>
double operand(const unsigned* words, int index) {
  if (kType == Type::tf32) return std::bit_cast<float>(words[index] & ~0x1fffU);
  const auto bits = static_cast<std::uint16_t>(words[index / 2] >> (16 * (index % 2)));
  return kType == Type::f16 ? tconv::cpu::to_float(tconv::cpu::Float16{bits})
                            : tconv::cpu::to_float(tconv::cpu::BFloat16{bits});
}
template <Type kType>
constexpr int kPerWord = kType == Type::tf32 ? 1 : 2;

}  // namespace emulation

namespace ptx {

inline unsigned shared_address(const void* pointer) {
  return static_cast<unsigned>(static_cast<const unsigned char*>(pointer) - emulation::shared_memory());
}

inline int opaque(int value) { return value; }

inline void load_matrices_transposed(unsigned (&out)[4], unsigned address) {
  const int lane = emulation::lane();
  const tconv::test::BlockEmulator::Exchange rows({address});
  for (int matrix = 0; matrix < 4; ++matrix) {
    out[matrix] = 0;
    for (int half = 0; half < 2; ++half) {
      const unsigned row = rows.lane(matrix * 8 + lane % 4 * 2 + half)[0];
      emulation::place(row, 16);
      const unsigned bits = emulation::read<unsigned short>(row + static_cast<unsigned>(lane / 4) * 2);
      out[matrix] |= bits << (16 * half);
    }
  }
}
inline void load_matrices(unsigned (&out)[4], unsigned address) {
  const int lane = emulation::lane();
  const tconv::test::BlockEmulator::Exchange rows({address});
  for (int matrix = 0; matrix < 4; ++matrix) {
    const unsigned row = rows.lane(matrix * 8 + lane / 4)[0];
    emulation::place(row, 16);
    out[matrix] = emulation::read<unsigned>(row + static_cast<unsigned>(lane % 4) * 4);
  }
}

inline void store_matrices(unsigned address, const unsigned (&words)[4]) {
  const int lane = emulation::lane();
  const tconv::test::BlockEmulator::Exchange rows({address});
  for (int matrix = 0; matrix < 4; ++matrix) {
    const unsigned row = rows.lane(matrix * 8 + lane / 4)[0];
    emulation::place(row, 16);
    std::memcpy(emulation::place(row + static_cast<unsigned>(lane % 4) * 4, 4), &words[matrix], 4);
  }
}
template <std::size_t kMatrices>
void store_matrices_transposed(unsigned address, const unsigned (&words)[kMatrices]) {
  const int lane = emulation::lane();
  const tconv::test::BlockEmulator::Exchange rows({address});
  for (int matrix = 0; matrix < static_cast<int>(kMatrices); ++matrix) {
    for (int half = 0; half < 2; ++half) {
      const unsigned row = rows.lane(matrix * 8 + lane % 4 * 2 + half)[0];
      emulation::place(row, 16);
      const auto bits = static_cast<std::uint16_t>(words[matrix] >> (16 * half));
      std::memcpy(emulation::place(row + static_cast<unsigned>(lane / 4) * 2, 2), &bits, 2);
    }
  }
}

inline void copy_16_async(unsigned shared, const void* global) {
  if (reinterpret_cast<std::uintptr_t>(global) % 16 != 0) throw std::runtime_error("a copy's source is not aligned");
  std::memcpy(emulation::place(shared, 16), global, 16);
}
inline void copy_16_async(unsigned shared, const void* global, int bytes) {
  if (reinterpret_cast<std::uintptr_t>(global) % 16 != 0) throw std::runtime_error("a copy's source is not aligned");
  std::memset(emulation::place(shared, 16), 0, 16);
  if (bytes > 0) std::memcpy(emulation::place(shared, 16), global, static_cast<std::size_t>(bytes));
}
template <int kBytes>
void copy_async(unsigned shared, const void* global, bool wanted) {
  unsigned char* const target = emulation::place(shared, kBytes);
  std::memset(target, 0, kBytes);
  if (!wanted) return;
  if (reinterpret_cast<std::uintptr_t>(global) % kBytes != 0)
    throw std::runtime_error("a copy's source is not aligned");
  std::memcpy(target, global, kBytes);
}
inline void commit_copies() {}
template <int kPending>
void wait_for_copies() {}

template <int kBytes>
void load_if(unsigned wanted, const void* global, unsigned (&out)[kBytes < 4 ? 1 : kBytes / 4]) {
  std::memset(out, 0, sizeof(out));
  if (wanted == 0) return;
  if (reinterpret_cast<std::uintptr_t>(global) % kBytes != 0) throw std::runtime_error("a load is not aligned");
  std::memcpy(out, global, kBytes);
}

inline Cell load_16(const void* global) {
  if (reinterpret_cast<std::uintptr_t>(global) % 16 != 0) throw std::runtime_error("a 16-byte load is not aligned");
  Cell cell;
  std::memcpy(&cell, global, 16);
  return cell;
}
template <std::size_t kWords>
void store_words(void* global, const unsigned (&words)[kWords]) {
  if (reinterpret_cast<std::uintptr_t>(global) % sizeof(words) != 0) throw std::runtime_error("a store is not aligned");
  std::memcpy(global, words, sizeof(words));
}
template <int kBytes>
void load_shared(unsigned shared, unsigned (&out)[kBytes < 4 ? 1 : kBytes / 4]) {
  out[0] = 0;
  std::memcpy(out, emulation::place(shared, kBytes), kBytes);
}
inline void store_16(unsigned shared, const Cell& cell) { std::memcpy(emulation::place(shared, 16), &cell, 16); }
template <std::size_t kWords>
void store_shared(unsigned shared, const unsigned (&words)[kWords]) {
  std::memcpy(emulation::place(shared, sizeof(words)), words, sizeof(words));
}
inline void store_shared_half(unsigned shared, unsigned bits) { std::memcpy(emulation::place(shared, 2), &bits, 2); }

inline float load_from_block(unsigned address, int rank) {
  float value;
  std::memcpy(&value, emulation::place(address, 4, static_cast<unsigned>(rank)), 4);
  return value;
}
inline void load_vector_from_block(unsigned address, int rank, float (&values)[4]) {
  if (address % 16 != 0) throw std::runtime_error("a load of sixteen bytes at an odd place");
  std::memcpy(values, emulation::place(address, 16, static_cast<unsigned>(rank)), 16);
}
inline void cluster_barrier() { tconv::test::BlockEmulator::barrier(tconv::test::BlockEmulator::Stop::cluster); }

inline unsigned load_shared_32(unsigned address) { return emulation::read<unsigned>(address); }
inline void load_shared_64(unsigned address, unsigned (&words)[2]) {
  if (address % 8 != 0) throw std::runtime_error("a load of eight bytes at an odd place");
  words[0] = emulation::read<unsigned>(address);
  words[1] = emulation::read<unsigned>(address + 4);
}
inline unsigned load_shared_16(unsigned address) { return emulation::read<unsigned short>(address); }
template <int kThreads>
void sync_first_threads() {
  tconv::test::BlockEmulator::first_threads(kThreads);
}

inline void sync_warpgroup(int index) {
  if (static_cast<unsigned>(index) != threadIdx.x / 128) throw std::runtime_error("a barrier of another warpgroup");
  tconv::test::BlockEmulator::barrier(tconv::test::BlockEmulator::Stop::warpgroup);
}

// Bytes announced that have not come yet, how many phases have ended (modulo 2), and who still has to arrive in this
// one.
constexpr int kMostArrivals = 1024;
struct Barrier {
  std::int32_t bytes;
  std::uint32_t phases : 1;
  std::uint32_t missing : 15;
  std::uint32_t arrivals : 16;
};
static_assert(sizeof(Barrier) == 8);
inline void update_barrier(unsigned address, int bytes, unsigned arrived) {
  auto barrier = emulation::read<Barrier>(address);
  barrier.bytes += bytes;
  if (arrived > barrier.missing) throw std::runtime_error("more arrivals at a barrier than it waits for");
  barrier.missing = (barrier.missing - arrived) & 0x7fffU;
  if (barrier.missing == 0 && barrier.bytes == 0) {
    barrier.phases ^= 1U;
    barrier.missing = barrier.arrivals & 0x7fffU;
  }
  std::memcpy(emulation::place(address, 8), &barrier, 8);
}
inline void init_barrier(unsigned address, int arrivals) {
  if (arrivals < 1 || arrivals > kMostArrivals) throw std::runtime_error("more arrivals than a block has threads");
  const auto all = static_cast<std::uint32_t>(arrivals);
  const Barrier barrier{.bytes = 0, .phases = 0, .missing = all & 0x7fffU, .arrivals = all & 0xffffU};
  std::memcpy(emulation::place(address, 8), &barrier, 8);
}
inline void arrive(unsigned address) { update_barrier(address, 0, 1); }
inline void arrive_after_copies(unsigned address) { update_barrier(address, 0, 1); }
inline void publish_barriers() {}
inline void expect_bytes(unsigned address, int bytes) { update_barrier(address, bytes, 1); }
inline void wait_barrier(unsigned address, int parity) {
  while (emulation::read<Barrier>(address).phases == static_cast<unsigned>(parity))
    tconv::test::BlockEmulator::barrier(tconv::test::BlockEmulator::Stop::poll);
}
inline void copy_bulk(unsigned shared, const void* global, int bytes, unsigned barrier) {
  if (reinterpret_cast<std::uintptr_t>(global) % 16 != 0) throw std::runtime_error("a copy's source is not aligned");
  if (bytes <= 0 || bytes % 16 != 0) throw std::runtime_error("a copy's size is no multiple of 16 bytes");
  for (int i = 0; i < bytes; i += 16) {
    std::memcpy(emulation::place(shared + static_cast<unsigned>(i), 16), static_cast<const char*>(global) + i, 16);
  }
  update_barrier(barrier, -bytes, 0);
}
inline void copy_bulk_out(void* global, unsigned shared, int bytes) {
  if (reinterpret_cast<std::uintptr_t>(global) % 16 != 0) throw std::runtime_error("a copy's target is not aligned");
  if (bytes <= 0 || bytes % 16 != 0) throw std::runtime_error("a copy's size is no multiple of 16 bytes");
  for (int i = 0; i < bytes; i += 16)
    std::memcpy(static_cast<char*>(global) + i, emulation::place(shared + static_cast<unsigned>(i), 16), 16);
}
inline void commit_bulk() {}
inline void wait_for_bulk_reads() {}
inline void prefetch_bulk(const void* global, unsigned bytes) {
  if (reinterpret_cast<std::uintptr_t>(global) % 16 != 0 || bytes % 16 != 0 || bytes == 0)
    throw std::runtime_error("misaligned prefetch");
  volatile char touched = static_cast<const char*>(global)[bytes - 1];
  (void)touched;
}
// Visits the bytes of a box: those in shared memory, where columns of 16 bytes are swapped by bits further up in their
// address, and those of the tensor, null outside of it.
template <typename Visit>
unsigned for_each_box_byte(unsigned shared, const void* map, const int (&at)[5], Visit&& visit) {
  tconv::cuda::TensorBoxes boxes;
  std::memcpy(&boxes, map, sizeof(boxes));
  if (reinterpret_cast<std::uintptr_t>(boxes.address) % 16 != 0 || shared % 128 != 0 ||
      *std::max_element(boxes.box, boxes.box + 5) > 256)
    throw std::runtime_error("the copy engine takes no such tensor");
  const auto row_bytes = static_cast<unsigned>(boxes.box[0] * boxes.element_bytes);
  unsigned place = shared;
  for (int row = 0; row < boxes.box[1] * boxes.box[2] * boxes.box[3] * boxes.box[4]; ++row) {
    char* line = static_cast<char*>(const_cast<void*>(boxes.address));
    bool inside = true;
    int rest = row;
    for (int i = 1; i < 5; ++i) {
      const long long index = at[i] + rest % boxes.box[i] * boxes.steps[i];
      rest /= boxes.box[i];
      inside = inside && index >= 0 && index < boxes.sizes[i];
      line += index * boxes.strides[i - 1] * boxes.element_bytes;
    }
    for (unsigned byte = 0; byte < row_bytes; ++byte, ++place) {
      const long long column = at[0] + static_cast<int>(byte) / boxes.element_bytes;
      const unsigned swapped = place ^ (place >> 3U & (row_bytes - 1) & 0x70U);
      const bool exists = inside && column >= 0 && column < boxes.sizes[0];
      visit(emulation::place(swapped, 1),
            exists ? line + at[0] * boxes.element_bytes + static_cast<int>(byte) : nullptr);
    }
  }
  return place - shared;
}
inline void copy_tensor(unsigned shared, const void* map, const int (&at)[5], unsigned barrier) {
  const unsigned bytes = for_each_box_byte(shared, map, at, [](auto* here, const char* there) {
    *here = there == nullptr ? 0 : static_cast<unsigned char>(*there);
  });
  update_barrier(barrier, -static_cast<int>(bytes), 0);
}
inline void copy_tensor_out(const void* map, const int (&at)[5], unsigned shared) {
  for_each_box_byte(shared, map, at, [](const auto* here, char* there) {
    if (there != nullptr) *there = static_cast<char>(*here);
  });
}
inline void wait_for_previous_kernel() {}
inline void let_next_kernel_start() {}

inline void fence_for_async_proxy() {}
template <int kRegisters>
void give_registers() {}
template <int kRegisters>
void take_registers() {}
inline void fence_warpgroup() {}
inline void commit_warpgroup() {}
template <int kPending = 0>
void wait_for_warpgroup() {}
inline float waited_for(float sum) { return sum; }

inline unsigned round_to_tf32(float value) {
  const unsigned bits = std::bit_cast<unsigned>(value);
  if ((bits & 0x7f800000U) == 0x7f800000U) return bits;
  return (bits + 0xfffU + (bits >> 13U & 1U)) & ~0x1fffU;
}
inline unsigned short round_to_f16(float value) { return tconv::cpu::to_float16(value).bits; }
inline unsigned short round_to_bf16(float value) { return tconv::cpu::to_bfloat16(value).bits; }
inline unsigned pack_f16(float low, float high) { return round_to_f16(low) | round_to_f16(high) << 16U; }
inline unsigned pack_bf16(float low, float high) { return round_to_bf16(low) | round_to_bf16(high) << 16U; }
inline float widen_f16(unsigned short bits) { return tconv::cpu::to_float(tconv::cpu::Float16{bits}); }

// mma.m16n8: a lane shows its fragments; row r, words w and w + 4 of A are with lane 4 r + w, and likewise columns of
// B.
template <emulation::Type kType>
void multiply(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  const tconv::test::BlockEmulator::Exchange all({a[0], a[1], a[2], a[3], b0, b1});
  const int lane = emulation::lane();
  for (int i = 0; i < 4; ++i) {
    const int row = lane / 4 + i / 2 * 8;
    const int column = lane % 4 * 2 + i % 2;
    unsigned row_words[8];
    unsigned column_words[8];
    for (int word = 0; word < 8; ++word) {
      row_words[word] = all.lane(row % 8 * 4 + word % 4)[row / 8 + word / 4 * 2];
      column_words[word] = all.lane(column * 4 + word % 4)[4 + word / 4];
    }
    double sum = d[i];
    for (int k = 0; k < 8 * emulation::kPerWord<kType>; ++k)
      sum += emulation::operand<kType>(row_words, k) * emulation::operand<kType>(column_words, k);
    d[i] = static_cast<float>(sum);
  }
}
inline void multiply_tf32(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  multiply<emulation::Type::tf32>(d, a, b0, b1);
}
inline void multiply_bf16(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  multiply<emulation::Type::bf16>(d, a, b0, b1);
}
inline void multiply_f16(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  multiply<emulation::Type::f16>(d, a, b0, b1);
}

// Operands of two bytes whose neighbours are rows (or columns) of the result, with columns of 16 bytes swapped as
// copy_tensor does.
inline void described_channels(unsigned long long descriptor, int row, unsigned (&words)[8]) {
  const auto kind = static_cast<unsigned>(descriptor >> 62U);
  const unsigned row_bytes = kind == 1 ? 128 : kind == 2 ? 64 : 32;
  const auto start = static_cast<unsigned>(descriptor & 0x3fff) * 16;
  const auto next_channels = static_cast<unsigned>(descriptor >> 16U & 0x3fff) * 16;
  const auto next_pixels = static_cast<unsigned>(descriptor >> 32U & 0x3fff) * 16;
  if (start % (8 * row_bytes) != 0) throw std::runtime_error("a descriptor must start where swapping repeats");
  const unsigned byte = 2 * static_cast<unsigned>(row);
  for (unsigned k = 0; k < 16; ++k) {
    const unsigned address =
        start + byte / row_bytes * next_channels + k / 8 * next_pixels + k % 8 * row_bytes + byte % row_bytes;
    const unsigned swapped = address ^ (address >> 3U & (row_bytes - 1) & 0x70U);
    std::memcpy(reinterpret_cast<char*>(words) + 2 * static_cast<std::size_t>(k), emulation::place(swapped, 2), 2);
  }
}
// The same for neighbours along the sum.
inline void described_swapped_words(unsigned long long descriptor, int row, unsigned (&words)[8]) {
  const auto kind = static_cast<unsigned>(descriptor >> 62U);
  const unsigned row_bytes = kind == 1 ? 128 : kind == 2 ? 64 : 32;
  const auto start = static_cast<unsigned>(descriptor & 0x3fff) * 16;
  const auto next_rows = static_cast<unsigned>(descriptor >> 32U & 0x3fff) * 16;
  if (start % (8 * row_bytes) >= row_bytes) throw std::runtime_error("a descriptor must start in a first row");
  for (unsigned half = 0; half < 2; ++half) {
    const auto index = static_cast<unsigned>(row);
    const unsigned address = start + index / 8 * next_rows + index % 8 * row_bytes + half * 16;
    const unsigned swapped = address ^ (address >> 3U & (row_bytes - 1) & 0x70U);
    std::memcpy(words + 4 * half, emulation::place(swapped, 16), 16);
  }
}
// wgmma: rows and columns of operands in shared memory are what descriptors point at, K-major unless they are
// transposed; each thread takes its own sums.
template <bool kTransposed>
void described_words(unsigned long long descriptor, int row, unsigned (&words)[8]) {
  if (descriptor >> 62U != 0) {
    return kTransposed ? described_channels(descriptor, row, words) : described_swapped_words(descriptor, row, words);
  }
  const auto start = static_cast<unsigned>(descriptor & 0x3fff);
  const auto next_slab = static_cast<unsigned>(descriptor >> 16 & 0x3fff);
  const auto next_rows = static_cast<unsigned>(descriptor >> 32 & 0x3fff);
  for (unsigned slab = 0; slab < 2; ++slab) {
    const unsigned cell =
        start + static_cast<unsigned>(row) / 8 * next_rows + static_cast<unsigned>(row) % 8 + slab * next_slab;
    std::memcpy(words + 4 * slab, emulation::place(cell * 16, 16), 16);
  }
}
template <emulation::Type kType, bool kTransposed, int kColumnTiles>
void add_products(float (&d)[kColumnTiles][4], int half, const unsigned (&row)[8], unsigned long long b) {
  for (int tile = 0; tile < kColumnTiles; ++tile) {
    for (int side = 0; side < 2; ++side) {
      unsigned column[8];
      described_words<kTransposed>(b, tile * 8 + emulation::lane() % 4 * 2 + side, column);
      double sum = d[tile][2 * half + side];
      for (int k = 0; k < 8 * emulation::kPerWord<kType>; ++k)
        sum += emulation::operand<kType>(row, k) * emulation::operand<kType>(column, k);
      d[tile][2 * half + side] = static_cast<float>(sum);
    }
  }
}
template <emulation::Type kType, bool kTransposed = false, int kColumnTiles>
void multiply_warpgroup(float (&d)[kColumnTiles][4], unsigned long long a, unsigned long long b) {
  const int warp = static_cast<int>(threadIdx.x) / 32 % 4;
  for (int half = 0; half < 2; ++half) {
    unsigned row[8];
    described_words<kTransposed>(a, warp * 16 + emulation::lane() / 4 + 8 * half, row);
    add_products<kType, kTransposed>(d, half, row, b);
  }
}
// The first factor from registers, laid out as mma.m16n8's.
template <emulation::Type kType, bool kTransposed = false, int kColumnTiles>
void multiply_warpgroup(float (&d)[kColumnTiles][4], const unsigned (&a)[4], unsigned long long b) {
  const tconv::test::BlockEmulator::Exchange all({a[0], a[1], a[2], a[3]});
  for (int half = 0; half < 2; ++half) {
    unsigned row[8];
    for (int word = 0; word < 8; ++word)
      row[word] = all.lane(emulation::lane() / 4 * 4 + word % 4)[half + word / 4 * 2];
    add_products<kType, kTransposed>(d, half, row, b);
  }
}

}  // namespace ptx

namespace emulation {

template <typename... Arguments, std::size_t... kAt>
void call(void (*kernel)(Arguments...), void** arguments, std::index_sequence<kAt...>) {
  kernel(*static_cast<std::remove_cvref_t<Arguments>*>(arguments[kAt])...);
}

// Runs a grid block by block (cluster by cluster along x), on shared memory that holds NaN at first.
template <typename... Arguments>
void run_grid(void (*kernel)(Arguments...), void** arguments, Index3 grid, unsigned threads, unsigned cluster,
              std::size_t shared_bytes) {
  g_grid = grid;
  g_threads = threads;
  g_shared_bytes = shared_bytes;
  g_shared.assign(cluster, {});
  tconv::test::BlockEmulator emulator;
  for (g_block.z = 0; g_block.z < grid.z; ++g_block.z) {
    for (g_block.y = 0; g_block.y < grid.y; ++g_block.y) {
      for (g_block.x = 0; g_block.x < grid.x; g_block.x += cluster) {
        for (std::vector<Cell>& shared : g_shared)
          shared.assign((shared_bytes + 15) / 16 + kGuardBytes / 16, Cell{~0U, ~0U, ~0U, ~0U});
        emulator.run(
            static_cast<int>(threads), [&](int) { call(kernel, arguments, std::index_sequence_for<Arguments...>()); },
            static_cast<int>(cluster));
        for (unsigned block = 0; block < cluster; ++block) {
          const unsigned char* bytes = shared_of(block);
          if (!std::all_of(bytes + shared_bytes, bytes + shared_bytes + kGuardBytes - 15,
                           [](unsigned char byte) { return byte == 0xff; })) {
            throw std::runtime_error("the kernel wrote past its shared memory");
          }
        }
      }
    }
  }
}

}  // namespace emulation
