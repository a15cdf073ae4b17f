// grad_input of groups of eight channels on tensor cores (mma.sync): rows of a product are sixteen pixels of a row, its
// columns the input channels of a group, its depth eight output channels at one tap. The output's gradient is read
// where it lies in the box, at any stride. A block keeps the weights of its group and takes box after box.
// group_load.cuh says what the config states.
#include "group_load.cuh"

struct alignas(2 * sizeof(Storage)) Pair {
  Storage first;
  Storage second;
};

extern "C" __global__ void __launch_bounds__(kGroupThreads, kShape.resident)
    tconv_group_input(const __grid_constant__ GroupParams p) {
  extern __shared__ __align__(16) unsigned char shared_memory[];
  float* const box = reinterpret_cast<float*>(shared_memory);
  float* const weights = box + kShape.box_words();  // [channels / 8][tap][lane][2]: as the lanes read them
  ptx::let_next_kernel_start();
  const int group = blockIdx.x % p.groups;
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;

  {
    // A thread takes the same place of every fourth product.
    constexpr int kPairs = kGroupChannels * 8;
    const int pair = threadIdx.x % kPairs;
    const int place = pair / 2 % 4 + pair % 2 * 4;
    const Storage* const source =
        static_cast<const Storage*>(p.weight) + (group * kGroupChannels + pair / 8) * p.weight_strides[0];
#pragma unroll 4
    for (int i = threadIdx.x / kPairs; i < kShape.taps() * kShape.out_channels / 8; i += kGroupThreads / kPairs) {
      const int product = i % kShape.taps();
      const int slot = product % kShape.kernel[2];
      weights[i * kPairs + pair] =
          operand(source[(i / kShape.taps() * 8 + kShape.slot_channel(slot, place)) * p.weight_strides[1] +
                         product / kShape.kernel[2] / kShape.kernel[1] * p.weight_strides[2] +
                         product / kShape.kernel[2] % kShape.kernel[1] * p.weight_strides[3] +
                         kShape.slot_tap(slot, place) * p.weight_strides[4]]);
    }
  }

  // A warp takes some rows of sixteen pixels, one below the other, so that what is read for one row's tap is there for
  // another's, and some of the taps along depth and width; with all along the height.
  constexpr int kRows = kShape.strip;
  constexpr int kTapWarps = kShape.tap_warps();
  constexpr int kAlong = kShape.tile[2] / 16;
  constexpr int kBelow = kShape.tile[1] / kRows;
  const int strip = warp / kTapWarps;
  const int first[3] = {strip / kAlong / kBelow, strip / kAlong % kBelow * kRows, strip % kAlong * 16 + lane / 4};
  const int tiles = p.tiles[0] * p.tiles[1] * p.tiles[2] * p.tiles[3];
#pragma unroll 1
  for (int index = blockIdx.x / p.groups; index < tiles; index += p.parts) {
    const GroupTile tile(p, index);
    const BoxPlace box_place(p, tile, group);
    __syncthreads();
    if constexpr (kShape.copies) {
      copy_box(p, box_place, box);
      finish_copies(p, box_place, box);
    } else {
      bring_box(p, box_place, box);
    }
    // Of a product's eight places along its depth a lane reads the one of its four and the one four behind it.
    const float* const place =
        box + kShape.channel_place(kShape.pairs_taps() ? lane / 2 % 2 : lane % 4) +
        (first[0] * kShape.stride[0] * kShape.box(1) + first[1] * kShape.stride[1]) * kShape.row_pitch() +
        first[2] * kShape.stride[2];
    const int lead = box_place.lead(p, lane % 4, first[0] * kShape.stride[0], first[1] * kShape.stride[1]);
    float sum[kRows][4] = {};
    // Where the strip's rows begin for a tap along the depth. Rows of the box that are four apart have the same lead.
    const auto find_lines = [&](int octet, int d, const float*(&line)[4]) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        line[i] = place + octet * 8 * kShape.channel_pitch() +
                  kShape.tap_place(d * kShape.kernel[1] * kShape.kernel[2]) +
                  lead_words(lead + d * kShape.dilation[0] * BoxPlace::low(p.output_strides[2]) +
                             i * BoxPlace::low(p.output_strides[3]));
      }
    };
    // One product of each row and tap along the height: slots of the same step differ in what is `behind`.
    const auto multiply = [&](int octet, int d, int slot, int behind, const float* const(&line)[4]) {
      constexpr int kFourBehind = (kShape.pairs_taps() ? 2 : 4) * kShape.channel_pitch();
      const float* const factors =
          weights + ((octet * kShape.taps() + d * kShape.kernel[1] * kShape.kernel[2] + slot) * 32 + lane) * 2;
      unsigned b[kShape.kernel[1]][2];
#pragma unroll
      for (int h = 0; h < kShape.kernel[1]; ++h) {
        b[h][0] = __float_as_uint(factors[h * kShape.kernel[2] * 64]);
        b[h][1] = __float_as_uint(factors[h * kShape.kernel[2] * 64 + 1]);
      }
#pragma unroll
      for (int row = 0; row < kShape.strip_reach(); ++row) {
        if (!kShape.strip_reads(row)) continue;
        const float* const at = line[row % 4] + row * kShape.row_pitch() + behind;
        const unsigned a[4] = {box_word(at), box_word(at + 8 * kShape.stride[2]), box_word(at + kFourBehind),
                               box_word(at + kFourBehind + 8 * kShape.stride[2])};
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
#pragma unroll
          for (int h = 0; h < kShape.kernel[1]; ++h) {
            if (i * kShape.stride[1] + h * kShape.dilation[1] == row) ptx::multiply_tf32(sum[i], a, b[h][0], b[h][1]);
          }
        }
      }
    };
    const auto multiply_step = [&](int octet, int d, int step, const float* const(&line)[4]) {
      const int tap = kShape.dilation[2] * (kShape.pairs_taps() ? step * 2 : step);
      if (kShape.is_pair(step)) {
        const int odd = lane % 2 * kShape.dilation[2];
        multiply(octet, d, step * 2, tap + odd, line);
        multiply(octet, d, step * 2 + 1, tap + odd + 4 * kShape.channel_pitch(), line);
      } else if constexpr (kShape.pairs_taps()) {
        multiply(octet, d, step * 2, tap + lane % 2 * 4 * kShape.channel_pitch(), line);
      } else {
        multiply(octet, d, step, tap, line);
      }
    };
#pragma unroll 1
    for (int octet = 0; octet < kShape.out_channels / 8; ++octet) {
      const float* line[4];
      if constexpr (kTapWarps == 1) {
        constexpr int kUnrolledSteps = kShape.kernel[2] <= 8 ? kShape.width_steps() : 1;
#pragma unroll 1
        for (int d = 0; d < kShape.kernel[0]; ++d) {
          find_lines(octet, d, line);
#pragma unroll kUnrolledSteps
          for (int step = 0; step < kShape.width_steps(); ++step) multiply_step(octet, d, step, line);
        }
      } else {
#pragma unroll 1
        for (int i = warp % kTapWarps; i < kShape.kernel[0] * kShape.width_steps(); i += kTapWarps) {
          find_lines(octet, i / kShape.width_steps(), line);
          multiply_step(octet, i / kShape.width_steps(), i % kShape.width_steps(), line);
        }
      }
    }

    // The sums of the other taps pass through shared memory, and are added in order.
    if constexpr (kTapWarps > 1) {
      constexpr int kStripSums = kRows * 4 * 32;
      static_assert(kShape.sums_words() <= kShape.box_words());
      float* const others = box + (warp / kTapWarps * (kTapWarps - 1)) * kStripSums + lane;
      __syncthreads();
      if (warp % kTapWarps > 0) {
#pragma unroll
        for (int i = 0; i < kRows * 4; ++i) others[(warp % kTapWarps - 1) * kStripSums + i * 32] = sum[i / 4][i % 4];
      }
      __syncthreads();
      if (warp % kTapWarps > 0) continue;
#pragma unroll
      for (int other = 0; other < kTapWarps - 1; ++other) {
#pragma unroll
        for (int i = 0; i < kRows * 4; ++i) sum[i / 4][i % 4] += others[other * kStripSums + i * 32];
      }
    }

    // A lane has two channels of two pixels, eight apart.
    Storage* const target = static_cast<Storage*>(p.input) + tile.sample * p.input_strides[0] +
                            static_cast<i64>(group * kGroupChannels + lane % 4 * 2) * p.input_strides[1];
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int d = tile.first[0] + first[0];
      const int h = tile.first[1] + first[1] + i;
      if (d >= p.input_size[0] || h >= p.input_size[1]) continue;
      Storage* const line = target + d * p.input_strides[2] + h * p.input_strides[3];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int w = tile.first[2] + first[2] + half * 8;
        if (w >= p.input_size[2]) continue;
        Storage* const pixel = line + w * column_stride(p.input_strides);
        const Pair pair = {Element::store(sum[i][half * 2]), Element::store(sum[i][half * 2 + 1])};
        if (kShape.last && p.aligned != 0) {
          *reinterpret_cast<Pair*>(pixel) = pair;
        } else {
          pixel[0] = pair.first;
          pixel[p.input_strides[1]] = pair.second;
        }
      }
    }
  }
}
