// grad_input of groups of eight channels on tensor cores (mma.sync): rows of a product are sixteen pixels of a row, its
// columns the input channels of a group, its depth eight output channels at one tap. The output's gradient is read
// where it lies in the box, at any stride. group_load.cuh says what the config states.
#include "group_load.cuh"

extern "C" __global__ void __launch_bounds__(kGroupThreads, kResident)
    tconv_group_input(const __grid_constant__ GroupParams p) {
  extern __shared__ __align__(16) unsigned char shared_memory[];
  float* const box = reinterpret_cast<float*>(shared_memory);
  float* const weights = box + kShape.box_words();  // [channels / 8][tap][lane][2]: as the lanes read them
  const int group = blockIdx.x % p.groups;
  const GroupTile tile(p, blockIdx.x / p.groups);
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;

  const BoxPlace box_place(p, tile, group);
  if constexpr (kShape.copies) copy_box(p, box_place, box);
#pragma unroll 4
  for (int i = threadIdx.x; i < kShape.weight_words(); i += kGroupThreads) {
    const int tap = i / 64 % kShape.taps();
    const int out_channel = i / 64 / kShape.taps() * 8 + i / 2 % 4 + i % 2 * 4;
    const int in_channel = group * kGroupChannels + i / 8 % 8;
    weights[i] = operand(
        static_cast<const Storage*>(p.weight)[in_channel * p.weight_strides[0] + out_channel * p.weight_strides[1] +
                                              tap / kShape.kernel[2] / kShape.kernel[1] * p.weight_strides[2] +
                                              tap / kShape.kernel[2] % kShape.kernel[1] * p.weight_strides[3] +
                                              tap % kShape.kernel[2] * p.weight_strides[4]]);
  }
  if constexpr (kShape.copies) {
    finish_copies(p, box_place, box);
  } else {
    load_box(p, box_place, box);
    __syncthreads();
  }

  constexpr int kProducts = kShape.pixel_products();
  constexpr int kAlong = kShape.tile[2] / 16;  // products of a row
  float sum[kProducts][4] = {};
  const float* place[kProducts];
  int pixel[kProducts][3];
  int lead[kProducts];
#pragma unroll
  for (int i = 0; i < kProducts; ++i) {
    const int index = warp * kProducts + i;
    pixel[i][0] = index / kAlong / kShape.tile[1];
    pixel[i][1] = index / kAlong % kShape.tile[1];
    pixel[i][2] = index % kAlong * 16 + lane / 4;
    place[i] = box + kShape.channel_place(lane % 4) +
               (pixel[i][0] * kShape.stride[0] * kShape.box(1) + pixel[i][1] * kShape.stride[1]) * kShape.row_pitch() +
               pixel[i][2] * kShape.stride[2];
    lead[i] = box_place.lead(p, lane % 4, pixel[i][0] * kShape.stride[0], pixel[i][1] * kShape.stride[1]);
  }
#pragma unroll
  for (int octet = 0; octet < kShape.out_channels / 8; ++octet) {
#pragma unroll 1
    for (int row = 0; row < kShape.kernel[0] * kShape.kernel[1]; ++row) {
      const int shift = octet * 8 * kShape.channel_pitch() + kShape.tap_place(row * kShape.kernel[2]);
      const int leads = row / kShape.kernel[1] * kShape.dilation[0] * BoxPlace::low(p.output_strides[2]) +
                        row % kShape.kernel[1] * kShape.dilation[1] * BoxPlace::low(p.output_strides[3]);
      const float* const factors = weights + ((octet * kShape.taps() + row * kShape.kernel[2]) * 32 + lane) * 2;
#pragma unroll
      for (int w = 0; w < kShape.kernel[2]; ++w) {
        const unsigned b[2] = {__float_as_uint(factors[w * 64]), __float_as_uint(factors[w * 64 + 1])};
#pragma unroll
        for (int i = 0; i < kProducts; ++i) {
          const float* const at = place[i] + shift + lead_words(lead[i] + leads) + w * kShape.dilation[2];
          const unsigned a[4] = {box_word(at), box_word(at + 8 * kShape.stride[2]),
                                 box_word(at + 4 * kShape.channel_pitch()),
                                 box_word(at + 4 * kShape.channel_pitch() + 8 * kShape.stride[2])};
          ptx::multiply_tf32(sum[i], a, b[0], b[1]);
        }
      }
    }
  }

  // A lane has two channels of two pixels, eight apart.
  Storage* const target = static_cast<Storage*>(p.input) + tile.sample * p.input_strides[0] +
                          static_cast<i64>(group * kGroupChannels + lane % 4 * 2) * p.input_strides[1];
#pragma unroll
  for (int i = 0; i < kProducts; ++i) {
    const int d = tile.first[0] + pixel[i][0];
    const int h = tile.first[1] + pixel[i][1];
    if (d >= p.input_size[0] || h >= p.input_size[1]) continue;
    Storage* const line = target + d * p.input_strides[2] + h * p.input_strides[3];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int w = tile.first[2] + pixel[i][2] + half * 8;
      if (w >= p.input_size[2]) continue;
      line[w] = Element::store(sum[i][half * 2]);
      line[w + p.input_strides[1]] = Element::store(sum[i][half * 2 + 1]);
    }
  }
}
