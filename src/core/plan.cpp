#include "tconv/plan.h"

#include <atomic>
#include <charconv>
#include <cstdio>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>

#include "core/env.h"
#include "core/family.h"
#include "tconv/error.h"

namespace tconv {
namespace {

struct PlanKey {
  Problem problem;
  Device device;
  std::string force;

  bool operator==(const PlanKey&) const = default;
};

struct PlanKeyHash {
  std::size_t operator()(const PlanKey& key) const {
    return hash_of(key.problem) ^ (static_cast<std::size_t>(key.device.backend) << 8U) ^
           (static_cast<std::size_t>(key.device.index) << 16U) ^ std::hash<std::string>{}(key.force);
  }
};

// Plans are small; a program that meets more shapes than this starts over rather than growing without end.
constexpr std::size_t kMostCachedPlans = 4096;

struct PlanCache {
  std::shared_mutex mutex;
  std::unordered_map<PlanKey, std::shared_ptr<const Plan>, PlanKeyHash> plans;
  // Grows with the lock held, so that whoever gets an adopted plan sees the number that belongs to it.
  std::atomic<std::uint64_t> generation{0};
};

PlanCache& plan_cache() {
  static PlanCache cache;
  return cache;
}

// A stride of zero in the tensor that is written would make several results one element. It is a rule of plans and not
// of problems, so that a problem can be validated before its strides are known. Other overlaps are the caller's to
// avoid.
void require_no_overlap(const Problem& problem) {
  const auto check = [](const Sizes& sizes, const Strides& strides) {
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      if (sizes[i] > 1 && strides[i] == 0) throw Error("a tensor that is written must have no stride of 0, got 0");
    }
  };
  switch (problem.direction) {
    case Direction::forward: return check(problem.output_sizes(), problem.output_strides);
    case Direction::grad_input: return check(problem.input_sizes(), problem.input_strides);
    case Direction::grad_weight: return check(problem.weight_sizes(), problem.weight_strides);
    case Direction::grad_bias: return;
  }
  throw Error("unknown direction " + std::to_string(static_cast<int>(problem.direction)));
}

std::span<const Family> families_of(Backend backend) {
  return backend == Backend::cpu ? cpu::families() : cuda::families();
}

void require_empty(std::int64_t elements, const char* name) {
  if (elements > 0) throw Error(std::string("the ") + name + " must be given for this problem, got a null pointer");
}

// A null pointer is right only for a tensor that has no element or that the direction leaves alone.
void require_buffers(const Plan& plan, const Buffers& buffers) {
  const Problem& problem = plan.problem;
  const bool bias_only = problem.direction == Direction::grad_bias;
  const bool bias = bias_only || (problem.direction == Direction::forward && problem.bias);
  if (buffers.input == nullptr && !bias_only) require_empty(element_count(problem.input_sizes()), "input");
  if (buffers.weight == nullptr && !bias_only) require_empty(element_count(problem.weight_sizes()), "weight");
  if (buffers.bias == nullptr && bias) require_empty(problem.out_channels, "bias");
  if (buffers.output == nullptr) require_empty(element_count(problem.output_sizes()), "output");
  if (buffers.workspace == nullptr && plan.workspace_bytes > 0) require_empty(1, "workspace");
}

struct Forced {
  std::string_view family;
  int cut = 0;
};

// "family" or "family#index".
Forced parse_forced(std::string_view force) {
  const std::size_t mark = force.find('#');
  if (mark == std::string_view::npos) return {force};
  Forced forced{force.substr(0, mark)};
  const std::string_view digits = force.substr(mark + 1);
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), forced.cut);
  if (error != std::errc() || end != digits.data() + digits.size() || forced.cut < 0) {
    throw Error(R"(a forced cut must be a number from 0 on, as in "tile#2", got ")" + std::string(force) + "\"");
  }
  return forced;
}

Proposal propose(const Family& family, const Problem& problem, const DeviceProperties& device, int cut) {
  if (cut == 0) return family.propose(problem, device);
  if (family.propose_cut == nullptr) return Proposal::decline("has one way to cut a problem");
  return family.propose_cut(problem, device, cut);
}

std::string format_seconds(double seconds) {
  char text[32];
  if (seconds < 1e-3) {
    std::snprintf(text, sizeof text, "%.1f us", seconds * 1e6);
  } else {
    std::snprintf(text, sizeof text, "%.3f ms", seconds * 1e3);
  }
  return text;
}

}  // namespace

Plan make_plan(const Problem& problem, const DeviceProperties& device, std::span<const Family> families,
               std::string_view force) {
  const Forced forced = parse_forced(force);
  Plan plan;
  plan.problem = problem;
  plan.device = device.device;
  const Problem joined = with_joined_axes(problem);
  bool known = force.empty();
  bool taken = false;  // by an exclusive family
  for (const Family& family : families) {
    if (!force.empty() && family.name != forced.family) {
      plan.declined.push_back(
          {std::string(family.name), "only " + std::string(forced.family) + " is allowed (forced)"});
      continue;
    }
    if (taken) {
      plan.declined.push_back({std::string(family.name), "what " + plan.family + " accepts is its own"});
      continue;
    }
    known = true;
    if (force.empty() && family.why_rather_not != nullptr) {
      if (std::string reason = family.why_rather_not(joined, device); !reason.empty()) {
        plan.declined.push_back({std::string(family.name), std::move(reason)});
        continue;
      }
    }
    Proposal proposal = propose(family, joined, device, forced.cut);
    if (proposal.kernel == nullptr) {
      plan.declined.push_back({std::string(family.name), proposal.declined});
      continue;
    }
    if (plan.kernel != nullptr) {
      const bool faster = proposal.expected_seconds > 0 && proposal.expected_seconds < plan.expected_seconds;
      const std::string loser = faster ? plan.family : std::string(family.name);
      const double loser_seconds = faster ? plan.expected_seconds : proposal.expected_seconds;
      plan.declined.push_back({loser, loser_seconds > 0 ? "expected to take " + format_seconds(loser_seconds)
                                                        : "an earlier family takes the problem"});
      if (!faster) continue;
    }
    plan.family = family.name;
    plan.kernel = std::move(proposal.kernel);
    plan.workspace_bytes = proposal.workspace_bytes;
    plan.expected_seconds = proposal.expected_seconds;
    taken = family.exclusive;
  }
  if (plan.kernel == nullptr) {
    std::string message =
        known ? "no kernel family takes the problem " + to_string(problem)
              : "the forced kernel family must be one of those below, got \"" + std::string(force) + "\"";
    for (const Declined& declined : plan.declined) message += "\n  " + declined.family + ": " + declined.reason;
    throw Error(message);
  }
  return plan;
}

std::shared_ptr<const Plan> plan(const Problem& problem, const Device& device, std::string_view force) {
  const PlanKey key{problem, device, std::string(force.empty() ? std::string_view(env().force) : force)};
  PlanCache& cache = plan_cache();
  {
    const std::shared_lock lock(cache.mutex);
    if (const auto found = cache.plans.find(key); found != cache.plans.end()) return found->second;
  }
  validate(problem);
  require_no_overlap(problem);
  const DeviceProperties properties =
      device.backend == Backend::cpu ? cpu::properties() : cuda::properties(device.index);
  std::optional<Plan> tuned;
  // Plans are measured alone, and a name that won means another kernel beside a gradient.
  const bool may_be_tuned = key.force.empty() && device.backend == Backend::cuda && !problem.beside;
  if (may_be_tuned && env().autotune != Autotune::ignore) {
    tuned = cuda::tuned_plan(problem, properties);
  }
  auto made = std::make_shared<const Plan>(
      tuned ? *std::move(tuned) : make_plan(problem, properties, families_of(device.backend), key.force));
  log(1, to_string(*made));
  const std::unique_lock lock(cache.mutex);
  if (cache.plans.size() >= kMostCachedPlans) cache.plans.clear();
  return cache.plans.emplace(key, std::move(made)).first->second;
}

void adopt(std::shared_ptr<const Plan> plan) {
  PlanCache& cache = plan_cache();
  const PlanKey key{plan->problem, plan->device, {}};
  const std::unique_lock lock(cache.mutex);
  cache.plans.insert_or_assign(key, std::move(plan));
  cache.generation.fetch_add(1);
}

void forget_plans() {
  PlanCache& cache = plan_cache();
  const std::unique_lock lock(cache.mutex);
  cache.plans.clear();
  cache.generation.fetch_add(1);
}

std::uint64_t plan_generation() { return plan_cache().generation.load(); }

std::vector<std::string> families(Backend backend) {
  std::vector<std::string> names;
  for (const Family& family : families_of(backend)) names.emplace_back(family.name);
  return names;
}

void run(const Plan& plan, const Buffers& buffers, const Execution& execution) {
  require_buffers(plan, buffers);
  if (env().log_level >= 2) log(2, "run " + to_string(plan));
  plan.kernel->run(buffers, execution);
}

void run_both(const Plan& grad_input, const Buffers& of_input, const Plan& grad_weight, const Buffers& of_weight,
              const Execution& execution) {
  require_buffers(grad_input, of_input);
  require_buffers(grad_weight, of_weight);
  if (grad_weight.kernel->run_with(*grad_input.kernel, of_input, of_weight, execution)) {
    if (env().log_level >= 2) log(2, "run " + to_string(grad_input) + " with " + to_string(grad_weight));
    return;
  }
  run(grad_input, of_input, execution);
  run(grad_weight, of_weight, execution);
}

std::string to_string(const Plan& plan) {
  std::string text = to_string(plan.problem) + " on " + (plan.device.backend == Backend::cpu ? "cpu" : "cuda:") +
                     (plan.device.backend == Backend::cpu ? "" : std::to_string(plan.device.index)) + ": " +
                     plan.family;
  if (const std::string details = plan.kernel->describe(); !details.empty()) text += " (" + details + ")";
  if (plan.workspace_bytes > 0) text += ", workspace " + std::to_string(plan.workspace_bytes) + " bytes";
  if (plan.expected_seconds > 0) text += ", expected " + format_seconds(plan.expected_seconds);
  if (plan.tuned) text += ", tuned";
  return text;
}

}  // namespace tconv
