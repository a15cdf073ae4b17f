// Launches general_weight.cuh for any layer. The pixels are summed in parts, which a second kernel adds up in order.
inline GeneralWeightParams weight_params(const Layer& layer) {
  GeneralWeightParams p = {};
  p.groups = layer.groups;
  p.in_channels = layer.in_channels / layer.groups;
  p.out_channels = layer.out_channels / layer.groups;
  p.in_bundles = ceil_div(p.in_channels, kWeightBundle);
  p.out_bundles = ceil_div(p.out_channels, kWeightBundle);
  p.taps = 1;
  p.pixels = layer.batch;
  p.input_strides[4] = p.weight_strides[4] = p.output_strides[4] = 1;
  for (int i = 2; i >= 0; --i) {
    const Axis& axis = layer.axes[i];
    p.axes[i] = {axis.input, axis.output, axis.kernel, axis.stride, axis.dilation, axis.padding};
    p.taps *= axis.kernel;
    p.pixels *= axis.input;
    p.input_strides[1 + i] = p.input_strides[2 + i] * axis.input;
    p.output_strides[1 + i] = p.output_strides[2 + i] * axis.output;
    p.weight_strides[1 + i] = p.weight_strides[2 + i] * axis.kernel;
  }
  p.input_strides[0] = p.input_strides[1] * layer.in_channels;
  p.output_strides[0] = p.output_strides[1] * layer.out_channels;
  p.weight_strides[0] = p.weight_strides[1] * p.out_channels;
  p.weights = layer.in_channels * p.out_channels * p.taps;
  // Parts enough to fill a large GPU, none shorter than 256 pixels, and at most 64 MiB of sums.
  const long long warps = p.groups * p.in_bundles * p.out_bundles * p.taps;
  const long long limits[] = {ceil_div(64 * 132, warps), p.pixels / 256,
                              (64LL << 20) / static_cast<long long>(sizeof(Sum)) / p.weights};
  p.parts = limits[0];
  for (const long long limit : limits) p.parts = limit < p.parts ? limit : p.parts;
  if (p.parts < 1) p.parts = 1;
  p.work = warps * p.parts;
  return p;
}

inline long long sums_bytes(const Layer& layer) {
  const GeneralWeightParams p = weight_params(layer);
  return p.parts == 1 ? 0 : p.parts * p.weights * static_cast<long long>(sizeof(Sum));
}

inline int run(const Tensors& tensors, const Layer& layer, void* stream) {
  GeneralWeightParams p = weight_params(layer);
  p.input = tensors.input;
  p.output = tensors.output;
  p.weight = tensors.weight;
  p.sums = tensors.workspace;
  const dim3 blocks(static_cast<unsigned>(ceil_div(p.work, kWeightWarps)));
  const int error = launch(tconv_general_weight, blocks, 32 * kWeightWarps, 0, false, stream, p);
  if (error != 0 || p.parts == 1) return error;
  return launch(tconv_general_weight_finish, dim3(static_cast<unsigned>(ceil_div(p.weights, 256))), 256, 0, false,
                stream, p);
}
