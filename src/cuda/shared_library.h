// A shared library opened at run time.
#pragma once

#include <dlfcn.h>

#include <string>

#include "tconv/error.h"

namespace tconv::cuda {

// Fills in a function pointer; throws Error when the library has no such function. Libraries stay open until the
// process ends: what they hold (contexts, modules) must outlive every static of ours.
template <typename Function>
void resolve(void* library, const char* name, Function*& function) {
  void* symbol = ::dlsym(library, name);
  if (symbol == nullptr)
    throw Error(std::string("library must provide ") + name + ", which it does not: it is too old");
  function = reinterpret_cast<Function*>(symbol);
}

}  // namespace tconv::cuda
