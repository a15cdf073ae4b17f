// What the two compiled parts of this file agree on. All tensors are dense; ranks 1 and 2 have axes of size one in
// front.
struct Axis {
  long long input;
  long long kernel;
  long long stride;
  long long dilation;
  long long padding;
  long long output;
};

struct Layer {
  long long batch;
  long long in_channels;
  long long out_channels;
  long long groups;
  Axis axes[3];  // depth, height, width
};

// Which of the tensors a call writes; it reads the others.
enum Direction { kForward, kGradInput, kGradWeight, kGradBias };

struct Tensors {
  void* input;
  void* weight;
  void* bias;  // null: none
  void* output;
  void* workspace;
};

// Zero, or the error of the CUDA runtime.
int launch_direction(int direction, const Tensors& tensors, const Layer& layer, void* stream);
int launch_on(int device, int direction, const Tensors& tensors, const Layer& layer, void* stream);
long long workspace_bytes(int direction, const Layer& layer);
const char* error_text(int error);
