// Doubles the size of a small image with a transposed convolution, from C++ and with plain pointers.
#include <tconv/tconv.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <vector>

namespace {

struct alignas(256) WorkspaceBlock {
  std::byte bytes[256];
};

tconv::Problem upsampling() {
  tconv::Problem problem;
  problem.rank = 2;
  problem.batch = 1;
  problem.in_channels = 1;
  problem.out_channels = 1;
  problem.bias = true;
  // kernel 4, stride 2, padding 1: bilinear upsampling by two, with the weights below
  for (const int axis : {1, 2}) {
    problem.axes[axis] = {.input = 4, .kernel = 4, .stride = 2, .pad_begin = 1, .pad_end = 1};
  }
  tconv::set_contiguous(problem);
  return problem;
}

int upsample_an_image() {
  const tconv::Problem problem = upsampling();
  const std::int64_t width = problem.axes[2].output();

  std::vector<float> image(tconv::element_count(problem.input_sizes()), 1.0F);
  std::vector<float> weight;
  for (const float vertical : {0.25F, 0.75F, 0.75F, 0.25F}) {
    for (const float horizontal : {0.25F, 0.75F, 0.75F, 0.25F}) weight.push_back(vertical * horizontal);
  }
  std::vector<float> bias = {0.5F};
  std::vector<float> output(tconv::element_count(problem.output_sizes()), std::nanf(""));

  const auto plan = tconv::plan(problem);
  std::printf("tconv %s\n%s\n", tconv::version(), tconv::to_string(*plan).c_str());
  std::vector<WorkspaceBlock> workspace((plan->workspace_bytes + sizeof(WorkspaceBlock) - 1) / sizeof(WorkspaceBlock));
  tconv::run(*plan, {.input = image.data(),
                     .weight = weight.data(),
                     .bias = bias.data(),
                     .output = output.data(),
                     .workspace = workspace.data()});

  for (std::int64_t i = 0; i < static_cast<std::int64_t>(output.size()); ++i) {
    std::printf("%6.3f%s", output[i], (i + 1) % width == 0 ? "\n" : " ");
  }
  // Away from the border the weights of the taps that meet sum to one: image plus bias.
  const float middle = output[width * (width / 2) + width / 2];
  if (middle != 1.5F) {
    std::fprintf(stderr, "expected 1.5 in the middle, got %g\n", middle);
    return 1;
  }
  return 0;
}

}  // namespace

int main() {
  try {
    return upsample_an_image();
  } catch (const std::exception& error) {  // tconv::Error, whose message says what was wrong
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
