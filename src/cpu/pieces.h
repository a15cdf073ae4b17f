// A problem computed piece by piece, where its own kernel would leave threads idle: few outputs with long sums.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cpu/phases_kernels.h"
#include "tconv/problem.h"

namespace tconv::cpu {

// Some images and, along the width, some outputs; where their tensors begin in those of the whole, in elements.
struct PieceOfProblem {
  Problem problem;
  std::int64_t input = 0;
  std::int64_t output = 0;
};

// forward, cut into at least `wanted` pieces, if there is so much of it: images, then rows in pieces of at least
// `fewest` cells each, which read what is around them once more. A crop is padding.
std::vector<PieceOfProblem> pieces_of(const Problem& problem, std::int64_t wanted, std::int64_t fewest);

// The pieces' own kernels, each run by one thread. They need no workspace.
class Pieces final : public Kernel {
 public:
  struct Piece {
    std::shared_ptr<const Kernel> kernel;
    std::int64_t input = 0;  // in bytes
    std::int64_t output = 0;
  };
  explicit Pieces(std::vector<Piece> pieces) : pieces_(std::move(pieces)) {}

  void run(const Buffers& buffers, const Execution& execution) const override {
    const Execution alone{[](std::int64_t count, std::int64_t, const ParallelBody& body) { body(0, count); }};
    for_each_task(execution, std::ssize(pieces_), [&](std::int64_t task) {
      Buffers own = buffers;
      own.input = static_cast<char*>(buffers.input) + pieces_[task].input;
      own.output = static_cast<char*>(buffers.output) + pieces_[task].output;
      pieces_[task].kernel->run(own, alone);
    });
  }

  std::string describe() const override {
    return std::to_string(pieces_.size()) + " pieces: " + pieces_.front().kernel->describe();
  }

 private:
  std::vector<Piece> pieces_;
};

}  // namespace tconv::cpu
