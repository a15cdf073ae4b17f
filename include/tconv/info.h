// What this build is and what it finds on the machine.
#pragma once

#include <string>
#include <vector>

namespace tconv {

const char* version();

struct Info {
  std::string version;
  std::string cpu_target;                 // the instruction set that the CPU kernels run with, such as "AVX3"
  int cpu_threads = 1;                    // threads that the library would start for itself
  std::string cache_directory;            // where compiled GPU kernels are kept
  std::string forced_family;              // TCONV_FORCE, or empty
  std::vector<std::string> cuda_devices;  // empty without a usable GPU; cuda_status says why
  std::string cuda_status;
};

Info info();

}  // namespace tconv
