// The operators' schemas, and the small ones through which Python asks the core about plans and the machine.
#include <ATen/core/List.h>
#include <torch/library.h>

#include <string>
#include <utility>
#include <vector>

#include "execute.h"
#include "fresh.h"
#include "kept_memory.h"
#include "tconv/error.h"
#include "tconv/explain.h"
#include "tconv/info.h"
#include "tconv/launches.h"
#include "tconv/plan.h"
#include "tconv/problem.h"
#include "words.h"

namespace tconv::front {
namespace {

using at::IntArrayRef;

DType parse_dtype(const std::string& word) {
  return parse<DType, 4>("dtype", word,
                         {{{name_of(DType::f64), DType::f64},
                           {name_of(DType::f32), DType::f32},
                           {name_of(DType::f16), DType::f16},
                           {name_of(DType::bf16), DType::bf16}}});
}

// "cpu", "cuda" or "cuda:1".
Device parse_device(const std::string& text) {
  const c10::Device device(text);
  if (device.is_cpu()) return {};
  if (!device.is_cuda()) throw Error("device must be cpu or cuda, got \"" + text + "\"");
  return {Backend::cuda, device.has_index() ? device.index() : 0};
}

std::vector<Axis> axes_of(IntArrayRef input, IntArrayRef kernel, IntArrayRef stride, IntArrayRef padding,
                          IntArrayRef output_padding, IntArrayRef dilation) {
  const std::size_t rank = kernel.size();
  if (rank < 1 || rank > kSpatialAxes) throw Error("kernel must have 1, 2 or 3 values, got " + std::to_string(rank));
  const auto value = [rank](const char* name, IntArrayRef values, std::size_t a) {
    if (values.size() != rank && values.size() != 1) {
      throw Error(std::string(name) + " must have 1 or " + std::to_string(rank) + " values, got " +
                  std::to_string(values.size()));
    }
    return values[values.size() == 1 ? 0 : a];
  };
  std::vector<Axis> axes(rank);
  for (std::size_t a = 0; a < rank; ++a) {
    axes[a] = {.input = value("input", input, a),
               .kernel = kernel[a],
               .stride = value("stride", stride, a),
               .dilation = value("dilation", dilation, a),
               .pad_begin = value("padding", padding, a),
               .pad_end = value("padding", padding, a),
               .output_padding = value("output_padding", output_padding, a)};
  }
  return axes;
}

struct Question {
  Problem problem;
  Device device;
};

// What models pass as weights that do not lie as the layout says; an empty text for those that do.
void set_weight_strides(Problem& problem, const std::string& name) {
  if (name.empty()) return;
  const auto [in_channels, out_channels, depth, height, width] = problem.weight_sizes();
  if (name == "contiguous") {
    problem.weight_strides = contiguous_strides(problem.weight_sizes());
  } else if (name == "transposed") {
    problem.weight_strides = contiguous_strides({out_channels, in_channels, depth, height, width});
    std::swap(problem.weight_strides[0], problem.weight_strides[1]);
  } else {
    TORCH_CHECK(name == "expanded", "weight_strides must be empty, contiguous, transposed or expanded, got ", name);
    problem.weight_strides = contiguous_strides({1, 1, depth, height, width});
    problem.weight_strides[0] = problem.weight_strides[1] = 0;
  }
}

Question question_of(const std::string& dtype, const std::string& device, const std::string& direction,
                     std::int64_t batch, std::int64_t in_channels, std::int64_t out_channels, IntArrayRef input,
                     IntArrayRef kernel, IntArrayRef stride, IntArrayRef padding, IntArrayRef output_padding,
                     IntArrayRef dilation, std::int64_t groups, bool bias, bool channels_last,
                     const std::string& precision, const std::string& weight_strides) {
  Question question;
  question.device = parse_device(device);
  Problem& problem = question.problem;
  problem.rank = static_cast<int>(kernel.size());
  problem.dtype = parse_dtype(dtype);
  problem.direction = parse_direction(direction);
  problem.precision =
      parse<Precision, 2>("precision", precision, {{{"strict", Precision::strict}, {"tf32", Precision::tf32}}});
  problem.bias = bias && problem.direction == Direction::forward;
  problem.batch = batch;
  problem.in_channels = in_channels;
  problem.out_channels = out_channels;
  problem.groups = groups;
  const std::vector<Axis> axes = axes_of(input, kernel, stride, padding, output_padding, dilation);
  for (std::size_t a = 0; a < axes.size(); ++a) problem.axes[kSpatialAxes - axes.size() + a] = axes[a];
  validate(problem);  // before sizes are computed from it
  set_contiguous(problem);
  if (channels_last) {
    // Of one axis PyTorch knows no such results: only what is read may lie so.
    const bool results = problem.rank > 1;
    if (results || problem.direction == Direction::forward || problem.direction == Direction::grad_weight)
      problem.input_strides = channels_last_strides(problem.input_sizes());
    if (results || problem.direction != Direction::grad_weight)
      problem.weight_strides = channels_last_strides(problem.weight_sizes());
    if (results) problem.output_strides = channels_last_strides(problem.output_sizes());
  }
  // A gradient of the weight is a tensor of its own, whatever the weight is a view of.
  if (problem.direction != Direction::grad_weight) set_weight_strides(problem, weight_strides);
  if (problem.direction == Direction::grad_bias) {  // reads grad_output alone
    problem.input_strides = contiguous_strides(problem.input_sizes());
    problem.weight_strides = contiguous_strides(problem.weight_sizes());
  }
  problem.input_strides = settled_strides(problem.input_sizes(), problem.input_strides);
  problem.weight_strides = settled_strides(problem.weight_sizes(), problem.weight_strides);
  problem.output_strides = settled_strides(problem.output_sizes(), problem.output_strides);
  return question;
}

template <typename... Args>
std::string explain_question(Args... args) {
  const Question question = question_of(args...);
  return explain(question.problem, question.device);
}

template <typename... Args>
std::string plan_summary(Args... args) {
  const Question question = question_of(args...);
  return to_string(*plan(question.problem, question.device, forced_family()));
}

template <typename... Args>
void prepare_question(Args... args) {
  Question question = question_of(args...);
  plan(question.problem, question.device, forced_family())->kernel->prepare();
  if (question.problem.direction != Direction::grad_input) return;
  question.problem.beside = true;
  plan(question.problem, question.device, forced_family())->kernel->prepare();
}

std::string hexadecimal(const std::string& bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const char byte : bytes) {
    text += kDigits[static_cast<unsigned char>(byte) >> 4U];
    text += kDigits[static_cast<unsigned char>(byte) & 15U];
  }
  return text;
}

// Family, description and workspace bytes, then for every launch: file, config, entry, "shared grid grid grid block
// overlaps" and the parameters' bytes in hexadecimal, with blanks between them.
template <typename... Args>
std::vector<std::string> record_question(const std::string& gpu, const std::string& force, Args... args) {
  const GpuModel model = parse<GpuModel, 2>("gpu", gpu, {{{"ampere", GpuModel::ampere}, {"hopper", GpuModel::hopper}}});
  const LaunchRecord record = record_launches(question_of(args...).problem, model, force);
  std::vector<std::string> texts = {record.family, record.description, std::to_string(record.workspace_bytes)};
  for (const Launch& launch : record.launches) {
    std::string numbers = std::to_string(launch.dynamic_shared_bytes);
    for (const unsigned size : {launch.grid[0], launch.grid[1], launch.grid[2], launch.block})
      numbers += " " + std::to_string(size);
    numbers += launch.overlaps_previous ? " 1" : " 0";
    std::string arguments;
    for (const std::string& argument : launch.arguments)
      arguments += (arguments.empty() ? "" : " ") + hexadecimal(argument);
    for (const std::string& text : {launch.file, launch.config, launch.entry, numbers, arguments})
      texts.push_back(text);
  }
  return texts;
}

std::vector<std::string> kernel_file_list() {
  std::vector<std::string> texts;
  for (const KernelFile& file : kernel_files()) {
    texts.push_back(file.name);
    texts.push_back(file.text);
  }
  return texts;
}

template <typename Result, typename... Args>
struct Signature {
  using Function = Result(Args...);
};
template <typename Result, typename... First>
using QuestionFunction =
    typename Signature<Result, First..., std::string, std::string, std::string, std::int64_t, std::int64_t,
                       std::int64_t, IntArrayRef, IntArrayRef, IntArrayRef, IntArrayRef, IntArrayRef, IntArrayRef,
                       std::int64_t, bool, bool, std::string, std::string>::Function;

std::vector<std::int64_t> output_size(IntArrayRef input, IntArrayRef kernel, IntArrayRef stride, IntArrayRef padding,
                                      IntArrayRef output_padding, IntArrayRef dilation) {
  std::vector<std::int64_t> sizes;
  for (const Axis& axis : axes_of(input, kernel, stride, padding, output_padding, dilation)) {
    sizes.push_back(axis.output());
  }
  return sizes;
}

// One "key=value" per line; a key may come more than once.
std::string info_lines() {
  const Info found = info();
  std::string lines = "version=" + found.version + "\ncpu_target=" + found.cpu_target +
                      "\ncpu_threads=" + std::to_string(found.cpu_threads) +
                      "\ncache_directory=" + found.cache_directory + "\nforced_family=" + found.forced_family +
                      "\nthreads=" + (uses_pytorch_threads() ? "pytorch" : "own") +
                      "\ncuda_status=" + found.cuda_status + "\n";
  for (const std::string& device : found.cuda_devices) lines += "cuda_device=" + device + "\n";
  return lines;
}

TORCH_LIBRARY(tconv, m) {
  const std::vector<at::Tag> tags = {at::Tag::pt2_compliant_tag};
  m.def(
      "conv_transpose(Tensor input, Tensor weight, Tensor? bias, SymInt[] stride, SymInt[] padding, "
      "SymInt[] output_padding, SymInt groups, SymInt[] dilation) -> Tensor",
      tags);
  m.def(
      "conv_transpose_backward(Tensor grad_output, Tensor input, Tensor weight, SymInt[] stride, SymInt[] padding, "
      "SymInt[] output_padding, SymInt groups, SymInt[] dilation, bool[3] output_mask) -> (Tensor, Tensor, Tensor)",
      tags);
  m.def(
      "_conv_transpose_kept(Tensor input, Tensor weight, Tensor? bias, int[] stride, int[] padding, "
      "int[] output_padding, int groups, int[] dilation, Tensor? workspace, int planning) -> (Tensor, Tensor)");
  m.def(
      "_race(Tensor input, Tensor weight, Tensor? bias, Tensor? grad_output, int[] stride, int[] padding, "
      "int[] output_padding, int groups, int[] dilation, str direction, int cuts) -> str");
  m.def("_number(int[] stride, int[] padding, int[] output_padding, int groups, int[] dilation) -> int");
  m.def("_conv_transpose_numbered(Tensor input, Tensor weight, Tensor? bias, int parameters) -> Tensor", tags);

  const std::string question =
      "str dtype, str device, str direction, int batch, int in_channels, int out_channels, int[] input, int[] kernel, "
      "int[] stride, int[] padding, int[] output_padding, int[] dilation, int groups, bool bias, bool channels_last, "
      "str precision, str weight_strides)";
  const QuestionFunction<std::string>* explain_function = &explain_question;
  const QuestionFunction<std::string>* summary_function = &plan_summary;
  const QuestionFunction<void>* prepare_function = &prepare_question;
  const QuestionFunction<std::vector<std::string>, const std::string&, const std::string&>* record_function =
      &record_question;
  m.def(("_explain(" + question + " -> str").c_str(), explain_function);
  m.def(("_plan_summary(" + question + " -> str").c_str(), summary_function);
  m.def(("_prepare(" + question + " -> ()").c_str(), prepare_function);
  m.def(("_record_launches(str gpu, str force, " + question + " -> str[]").c_str(), record_function);
  m.def("_kernel_files() -> str[]", &kernel_file_list);
  m.def(
      "_output_size(int[] input, int[] kernel, int[] stride, int[] padding, int[] output_padding, int[] dilation) "
      "-> int[]",
      &output_size);
  m.def("_info() -> str", &info_lines);
  m.def("_version() -> str", []() { return std::string(version()); });
  m.def("_families(str device) -> str[]",
        [](const std::string& device) { return families(parse_device(device).backend); });
  m.def("_force(str family) -> ()", [](const std::string& family) { force_family(family); });
  m.def("_forced() -> str", []() { return std::string(forced_family()); });
  m.def("_planning() -> int", &planning);
  m.def("_autotune(bool begin) -> ()", &autotune);
  m.def("_release_memory() -> ()", &release_memory);
  m.def("_kept_like(Tensor tensor) -> Tensor",
        [](const at::Tensor& tensor) { return fresh(tensor.sizes(), tensor.options(), at::MemoryFormat::Contiguous); });
  m.def("_scratch_bytes() -> int", &scratch_bytes);
  m.def("_multiply_adds(str dtype, int rounds) -> int",
        [](const std::string& dtype, std::int64_t rounds) { return multiply_adds(parse_dtype(dtype), rounds); });
}

}  // namespace
}  // namespace tconv::front
