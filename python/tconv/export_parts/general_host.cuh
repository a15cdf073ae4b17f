// Launches general.cuh for any layer: forward, or (kGradient) the gradient of the input, which reads the tap map the
// other way: what it reads is the layer's output, what it writes its input.
inline GeneralAxis general_axis(const Axis& axis, long long read_stride, long long weight_stride) {
  GeneralAxis out = {};
  out.input = kGradient ? axis.output : axis.input;
  out.output = kGradient ? axis.input : axis.output;
  out.kernel = axis.kernel;
  out.stride = axis.stride;
  out.dilation = axis.dilation;
  out.pad = axis.padding;
  long long common = axis.stride;
  for (long long rest = axis.dilation; rest != 0;) {
    const long long next = common % rest;
    common = rest;
    rest = next;
  }
  out.common = common;
  out.tap_step = kGradient ? 1 : axis.stride / common;
  out.input_step = kGradient ? -axis.dilation : axis.dilation / common;
  out.inverse = -1;  // the first tap of a residue is searched
  out.input_jump = out.input_step * read_stride;
  out.weight_jump = out.tap_step * weight_stride;
  return out;
}

// Strides of a dense tensor: batch, channel, depth, height, width.
inline void dense_strides(GeneralIndex (&strides)[5], long long channels, const GeneralIndex (&sizes)[3]) {
  strides[4] = 1;
  for (int i = 2; i >= 1; --i) strides[i + 1] = strides[i + 2] * sizes[i];
  strides[1] = strides[2] * sizes[0];
  strides[0] = strides[1] * channels;
}

inline int run(const void* read, const void* weight, const void* bias, void* written, const Layer& layer,
               void* stream) {
  GeneralParams p = {};
  p.input = read;
  p.weight = weight;
  p.bias = bias;
  p.output = written;
  GeneralIndex inputs[3], outputs[3], taps[3];
  for (int i = 0; i < 3; ++i) {
    inputs[i] = layer.axes[i].input;
    outputs[i] = layer.axes[i].output;
    taps[i] = layer.axes[i].kernel;
  }
  const long long in_channels = layer.in_channels / layer.groups;
  const long long out_channels = layer.out_channels / layer.groups;
  dense_strides(p.weight_strides, out_channels, taps);
  p.weight_group_stride = in_channels * p.weight_strides[0];
  dense_strides(kGradient ? p.output_strides : p.input_strides, layer.in_channels, inputs);
  dense_strides(kGradient ? p.input_strides : p.output_strides, layer.out_channels, outputs);
  if (kGradient) {
    const GeneralIndex swapped = p.weight_strides[0];
    p.weight_strides[0] = p.weight_strides[1];
    p.weight_strides[1] = swapped;
  }
  p.batch = layer.batch;
  p.groups = layer.groups;
  p.in_channels = kGradient ? out_channels : in_channels;
  p.out_channels = kGradient ? in_channels : out_channels;
  p.bundles = ceil_div(p.out_channels, kBundle);
  p.work = p.batch * p.groups * p.bundles;
  for (int i = 0; i < 3; ++i) {
    p.axes[i] = general_axis(layer.axes[i], p.input_strides[2 + i], p.weight_strides[2 + i]);
    p.work *= p.axes[i].output;
  }
  constexpr long long kThreads = 256;
  if (ceil_div(p.work, kThreads) > 0x7fffffff) return 1;  // cudaErrorInvalidValue: more blocks than a grid has
  return launch(tconv_general, dim3(static_cast<unsigned>(ceil_div(p.work, kThreads))), kThreads, 0, false, stream, p);
}
