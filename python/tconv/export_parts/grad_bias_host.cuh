// Launches grad_bias.cuh: sums the `rows` rows of `columns` neighbours that each channel has, in parts.
inline int run(const void* input, void* output, long long channels, long long channel_stride, long long rows,
               long long row_stride, long long columns, long long parts, void* stream) {
  GradBiasParams p = {};
  p.input = input;
  p.output = output;
  p.channels = channels;
  p.channel_stride = channel_stride;
  p.sizes[0] = rows;
  p.strides[0] = row_stride;
  p.sizes[3] = columns;
  p.strides[3] = 1;
  p.elements = rows * columns;
  p.parts = parts;
  return launch(tconv_grad_bias, dim3(static_cast<unsigned>(channels * parts)), kBiasThreads, 0, false, stream, p);
}
