// The gradient of the bias: the output's gradient summed per channel in parts, then the parts.
long long pixels_of_output(const Layer& layer) {
  return layer.axes[0].output * layer.axes[1].output * layer.axes[2].output;
}

// Parts enough to fill a large GPU, none shorter than is worth a block.
long long bias_parts(const Layer& layer) {
  const long long wanted = ceil_div(8 * 132, layer.out_channels);
  const long long worth = layer.batch * pixels_of_output(layer) / 4096;
  const long long parts = worth < wanted ? worth : wanted;
  return parts < 1 ? 1 : parts;
}

long long grad_bias_workspace(const Layer& layer) { return bias_parts(layer) * layer.out_channels * 8; }

int grad_bias(const Tensors& tensors, const Layer& layer, void* stream) {
  const long long pixels = pixels_of_output(layer);
  const long long parts = bias_parts(layer);
  const int error = bias_first::run(tensors.output, tensors.workspace, layer.out_channels, pixels, layer.batch,
                                    layer.out_channels * pixels, pixels, parts, stream);
  if (error != 0) return error;
  return bias_second::run(tensors.workspace, tensors.bias, layer.out_channels, parts, 1, 0, parts, 1, stream);
}
