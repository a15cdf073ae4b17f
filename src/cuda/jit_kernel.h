// A kernel that compiles itself when it is first needed.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "cuda/source.h"

namespace tconv::cuda {

struct LaunchShape {
  unsigned grid_x = 1;
  unsigned grid_y = 1;
  unsigned grid_z = 1;
  unsigned block = 1;
  // May start while the kernel before it in the stream still runs: it waits itself for what that one writes, and that
  // one says when all its blocks run. Where the driver can't do that, it starts afterwards.
  bool overlaps_previous = false;
};

// Compiled and loaded for a device when it is first needed, once, however many threads ask. A launch on a device for
// which it was prepared makes no call that a stream capture forbids.
class JitKernel {
 public:
  // arch: 80, 86, 89, 90 (compiled for sm_90a), 100 (sm_100a), 120.
  JitKernel(KernelSource source, std::size_t dynamic_shared_bytes, int arch);
  JitKernel(JitKernel&&) noexcept;
  JitKernel& operator=(JitKernel&&) noexcept;
  ~JitKernel();

  // Compiles (or reads from the caches) and loads.
  void prepare(int device) const;

  // `arguments` points to one pointer per kernel parameter, as cuLaunchKernel takes them. `device` is the device that
  // owns `stream`. An empty grid launches nothing.
  void launch(int device, const LaunchShape& shape, void** arguments, void* stream) const;

  const KernelSource& source() const;
  std::size_t dynamic_shared_bytes() const;
  int arch() const;
  bool overlaps() const;  // whether LaunchShape::overlaps_previous has a meaning for it

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Notes every kernel that this thread makes while it lives: what a plan would compile can be seen without a GPU. One
// that overrides `launch` can run them by other means, too.
class JitKernelWatch {
 public:
  struct Made {
    KernelSource source;
    std::size_t dynamic_shared_bytes = 0;
    int arch = 0;
  };

  JitKernelWatch();
  JitKernelWatch(const JitKernelWatch&) = delete;
  JitKernelWatch& operator=(const JitKernelWatch&) = delete;
  virtual ~JitKernelWatch();

  const std::vector<Made>& made() const { return made_; }
  static bool watches();  // whether one lives on this thread

 private:
  friend class JitKernel;
  // Whether the launch is done with.
  virtual bool launch(const JitKernel& /*kernel*/, const LaunchShape& /*shape*/, void** /*arguments*/) { return false; }

  std::vector<Made> made_;
  JitKernelWatch* outer_;
};

}  // namespace tconv::cuda
