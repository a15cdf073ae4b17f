// The gradient of the input of a depthwise layer of one or two axes, bound by bandwidth.
//
// A thread computes a few rows of a strip of cells of one plane: it reads the rows that they need, halo included, by
// vectors from global memory into registers, each row once; neighbours share the halo through the first-level cache.
// There is no shared memory and no barrier.
//
// The config before this file states kConfig.
#include "direct_gradient_depthwise_params.cuh"
#include "direct_gradient_element.cuh"

namespace direct_gradient {

constexpr int kStrip = kConfig.strip;
constexpr int kLoad = kConfig.load;

struct alignas(sizeof(Element) * kLoad) Load {
  Element value[kLoad];
};
struct alignas(sizeof(Element) * kConfig.store) Run {
  Element value[kConfig.store];
};

// One row of the window: columns first, first + 1, ... where first is a multiple of kLoad. `row` may be null: zeros.
__device__ __forceinline__ void load_row(const Element* row, int first, int width, Sum (&x)[kConfig.window()]) {
#pragma unroll
  for (int i = 0; i < kConfig.window(); i += kLoad) {
    const int column = first + i;
    Load load = {};
    if (row != nullptr && column >= 0 && column + kLoad <= width) {
      load = *reinterpret_cast<const Load*>(row + column);
    } else if (row != nullptr && kLoad > 1) {
#pragma unroll
      for (int v = 0; v < kLoad; ++v) {
        if (static_cast<unsigned>(column + v) < static_cast<unsigned>(width)) load.value[v] = row[column + v];
      }
    }
#pragma unroll
    for (int v = 0; v < kLoad; ++v) x[i + v] = widen(load.value[v]);
  }
}

}  // namespace direct_gradient

extern "C" __global__ void __launch_bounds__(kDepthwiseThreads)
    tconv_direct_gradient_depthwise(const __grid_constant__ DepthwiseGradientArguments a) {
  using namespace direct_gradient;
  ptx::let_next_kernel_start();
  const long long thread = blockIdx.x * static_cast<long long>(kDepthwiseThreads) + threadIdx.x;
  if (thread >= a.threads) return;
  const unsigned in_plane = static_cast<unsigned>(a.strips) * static_cast<unsigned>(a.row_groups);
  const unsigned plane = static_cast<unsigned>(thread / in_plane);
  const unsigned place = static_cast<unsigned>(thread - static_cast<long long>(plane) * in_plane);
  const int cell = static_cast<int>(place % static_cast<unsigned>(a.strips)) * kStrip;
  const int first_row = static_cast<int>(place / static_cast<unsigned>(a.strips)) * kConfig.rows;
  const unsigned sample = plane / static_cast<unsigned>(a.channels);
  const unsigned channel = plane - sample * static_cast<unsigned>(a.channels);

  const Element* const input =
      static_cast<const Element*>(a.input) + sample * a.input_batch + channel * a.input_channel;
  const Element* const weight = static_cast<const Element*>(a.weight) + channel * a.weight_channel;
  Sum weights[kConfig.height.kernel][kConfig.width.kernel];
#pragma unroll
  for (int h = 0; h < kConfig.height.kernel; ++h) {
#pragma unroll
    for (int w = 0; w < kConfig.width.kernel; ++w)
      weights[h][w] = widen(__ldg(weight + h * a.weight_height + w * a.weight_width));
  }

  // The window begins some columns before the first that is needed, at a place where a vector may begin.
  const int column = cell * kConfig.width.stride - a.pad_width - kConfig.lead;
  const int row = first_row * kConfig.height.stride - a.pad_height;
  Sum sums[kConfig.rows][kStrip] = {};
#pragma unroll
  for (int r = 0; r < kConfig.input_rows(); ++r) {
    if (!kConfig.reads_row(r)) continue;
    Sum x[kConfig.window()];
    const bool exists = static_cast<unsigned>(row + r) < static_cast<unsigned>(a.input_rows);
    load_row(exists ? input + (row + r) * a.input_row : nullptr, column, a.input_width, x);
#pragma unroll
    for (int i = 0; i < kConfig.rows; ++i) {
      const int reach = r - i * kConfig.height.stride;
      if (reach < 0 || reach % kConfig.height.dilation != 0) continue;
      if (reach / kConfig.height.dilation >= kConfig.height.kernel) continue;
      const int h = reach / kConfig.height.dilation;
#pragma unroll
      for (int w = 0; w < kConfig.width.kernel; ++w) {
#pragma unroll
        for (int q = 0; q < kStrip; ++q) {
          sums[i][q] += x[kConfig.lead + q * kConfig.width.stride + w * kConfig.width.dilation] * weights[h][w];
        }
      }
    }
  }

  Element* output = static_cast<Element*>(a.output) + sample * a.output_batch + channel * a.output_channel +
                    first_row * a.output_row + cell;
  const bool together =
      cell + kStrip <= a.output_width && reinterpret_cast<unsigned long long>(output) % sizeof(Run) == 0;
#pragma unroll
  for (int i = 0; i < kConfig.rows; ++i) {
    if (first_row + i >= a.output_rows) break;
    if (together) {
#pragma unroll
      for (int q = 0; q < kStrip; q += kConfig.store) {
        Run run;
#pragma unroll
        for (int v = 0; v < kConfig.store; ++v) run.value[v] = narrow(sums[i][q + v], Element());
        *reinterpret_cast<Run*>(output + q) = run;
      }
    } else {
#pragma unroll
      for (int q = 0; q < kStrip; ++q) {
        if (cell + q < a.output_width) output[q] = narrow(sums[i][q], Element());
      }
    }
    output += a.output_row;
  }
}
