// grad_weight of groups of eight channels on tensor cores (mma.sync): rows of a product are taps and output channels,
// its columns the input channels of a group, its depth eight pixels of a row. Both tensors are read where they lie in
// their boxes. Blocks take tile after tile of their part of the pixels; a second kernel adds up the parts in order.
// group_load.cuh says what the config states.
#include "group_load.cuh"

// The pixels of the input, [channel][pixel], zeros outside: a channel by each warp, or a pixel by each thread where
// channels are neighbours.
__device__ __forceinline__ void load_pixels(const GroupParams& p, const GroupTile& tile, int group, float* pixels) {
  static_assert(kWarps == kGroupChannels && kShape.pixels() % 32 == 0);
  const auto offset_if_inside = [&](int at, i64& offset) {
    const int d = tile.first[0] + at / kShape.tile[2] / kShape.tile[1];
    const int h = tile.first[1] + at / kShape.tile[2] % kShape.tile[1];
    const int w = tile.first[2] + at % kShape.tile[2];
    offset = d * p.input_strides[2] + h * p.input_strides[3] + w * column_stride(p.input_strides);
    return d < p.input_size[0] && h < p.input_size[1] && w < p.input_size[2];
  };
  if constexpr (kShape.last) {
    const Storage* const source = static_cast<const Storage*>(p.input) + tile.sample * p.input_strides[0] +
                                  static_cast<i64>(group) * kGroupChannels;
#pragma unroll 1
    for (int at = threadIdx.x; at < kShape.pixels(); at += kGroupThreads) {
      Octet octet = {};
      i64 offset;
      if (offset_if_inside(at, offset)) octet.load(source + offset, p.aligned != 0);
#pragma unroll
      for (int c = 0; c < kGroupChannels; ++c) pixels[c * kShape.pixel_pitch() + at] = operand(octet.channel[c]);
    }
    return;
  }
  const int channel = threadIdx.x / 32;
  const Storage* const source = static_cast<const Storage*>(p.input) + tile.sample * p.input_strides[0] +
                                static_cast<i64>(group * kGroupChannels + channel) * p.input_strides[1];
#pragma unroll 8
  for (int first = 0; first < kShape.pixels(); first += 32) {
    const int at = first + threadIdx.x % 32;
    i64 offset;
    Storage value = 0;
    if (offset_if_inside(at, offset)) value = source[offset];
    pixels[channel * kShape.pixel_pitch() + at] = operand(value);
  }
}

extern "C" __global__ void __launch_bounds__(kGroupThreads, kShape.resident)
    tconv_group_weight(const __grid_constant__ GroupParams p) {
  extern __shared__ __align__(16) unsigned char shared_memory[];
  float* const box = reinterpret_cast<float*>(shared_memory);
  float* const pixels = box + kShape.box_words();
  ptx::let_next_kernel_start();
  const int group = blockIdx.x % p.groups;
  const int part = blockIdx.x / p.groups;
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;

  constexpr int kProducts = kShape.warp_products();
  float sum[kProducts][4] = {};
  // Of the lane's two rows, eight apart, and in the last two bits what taps and channels add to their leads.
  unsigned place[kProducts][2];
#pragma unroll
  for (int i = 0; i < kProducts; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int product = min(warp + i * kWarps, kShape.products() - 1);
      const int tap = min(kShape.product_tap(product, lane), kShape.taps() - 1);
      const int channel = kShape.product_channel(product, half, lane);
      const int lead =
          channel * BoxPlace::low(p.output_strides[1]) +
          tap / kShape.kernel[2] / kShape.kernel[1] * kShape.dilation[0] * BoxPlace::low(p.output_strides[2]) +
          tap / kShape.kernel[2] % kShape.kernel[1] * kShape.dilation[1] * BoxPlace::low(p.output_strides[3]);
      place[i][half] =
          (kShape.channel_place(channel) + kShape.tap_place(tap) + lane % 4 * kShape.stride[2]) * 4 + lead_words(lead);
    }
  }
  const float* const columns = pixels + lane / 4 * kShape.pixel_pitch() + lane % 4;

  const int tiles = p.tiles[0] * p.tiles[1] * p.tiles[2] * p.tiles[3];
#pragma unroll 1
  for (int index = part; index < tiles; index += p.parts) {
    const GroupTile tile(p, index);
    const BoxPlace box_place(p, tile, group);
    __syncthreads();
    if constexpr (kShape.copies) {
      copy_box(p, box_place, box);
      load_pixels(p, tile, group, pixels);
      finish_copies(p, box_place, box);
    } else {
      load_pixels(p, tile, group, pixels);
      bring_box(p, box_place, box);
    }
#pragma unroll 1
    for (int row = 0; row < kShape.tile[0] * kShape.tile[1]; ++row) {
      const int shift =
          (row / kShape.tile[1] * kShape.stride[0] * kShape.box(1) + row % kShape.tile[1] * kShape.stride[1]) *
          kShape.row_pitch();
      const int lead =
          box_place.lead(p, 0, row / kShape.tile[1] * kShape.stride[0], row % kShape.tile[1] * kShape.stride[1]);
#pragma unroll 2
      for (int w = 0; w < kShape.tile[2]; w += 8) {
        const float* const column = columns + row * kShape.tile[2] + w;
        const unsigned b[2] = {__float_as_uint(column[0]), __float_as_uint(column[4])};
#pragma unroll
        for (int i = 0; i < kProducts; ++i) {
          const float* const upper =
              box + place[i][0] / 4 + shift + lead_words(place[i][0] + lead) + w * kShape.stride[2];
          const float* const lower =
              box + place[i][1] / 4 + shift + lead_words(place[i][1] + lead) + w * kShape.stride[2];
          const unsigned a[4] = {box_word(upper), box_word(lower), box_word(upper + 4 * kShape.stride[2]),
                                 box_word(lower + 4 * kShape.stride[2])};
          ptx::multiply_tf32(sum[i], a, b[0], b[1]);
        }
      }
    }
  }

  float* const sums = p.sums + (static_cast<i64>(part) * p.groups + group) * kShape.rows() * kGroupChannels;
#pragma unroll
  for (int i = 0; i < kProducts; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int product = warp + i * kWarps;
      const int tap = kShape.product_tap(product, lane);
      if (product >= kShape.products() || tap >= kShape.taps()) continue;
      const int row = tap * kShape.out_channels + kShape.product_channel(product, half, lane);
      sums[row * kGroupChannels + lane % 4 * 2] = sum[i][half * 2];
      sums[row * kGroupChannels + lane % 4 * 2 + 1] = sum[i][half * 2 + 1];
    }
  }
  ptx::wait_for_previous_kernel();  // whoever waits for this kernel waits for the one beside it, too
}

// A warp's lanes take neighbouring sums, its warps pieces of the parts.
extern "C" __global__ void __launch_bounds__(kGroupThreads)
    tconv_group_weight_finish(const __grid_constant__ GroupParams p) {
  __shared__ float pieces[kWarps][32];
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const i64 all = static_cast<i64>(p.groups) * kShape.rows() * kGroupChannels;
  const i64 index = static_cast<i64>(blockIdx.x) * 32 + lane;
  ptx::wait_for_previous_kernel();
  float total = 0;
  if (index < all) {
    const int end = p.parts * (warp + 1) / kWarps;
#pragma unroll 4
    for (int part = p.parts * warp / kWarps; part < end; ++part) total += p.sums[part * all + index];
  }
  pieces[warp][lane] = total;
  __syncthreads();
  if (warp > 0 || index >= all) return;
#pragma unroll
  for (int other = 1; other < kWarps; ++other) total += pieces[other][lane];
  const int row = static_cast<int>(index / kGroupChannels % kShape.rows());
  const int in_channel = static_cast<int>(index / kGroupChannels / kShape.rows()) * kGroupChannels +
                         static_cast<int>(index % kGroupChannels);
  const int tap = row / kShape.out_channels;
  static_cast<Storage*>(p.weight)[in_channel * p.weight_strides[0] + row % kShape.out_channels * p.weight_strides[1] +
                                  tap / kShape.kernel[2] / kShape.kernel[1] * p.weight_strides[2] +
                                  tap / kShape.kernel[2] % kShape.kernel[1] * p.weight_strides[3] +
                                  tap % kShape.kernel[2] * p.weight_strides[4]] = Element::store(total);
}
