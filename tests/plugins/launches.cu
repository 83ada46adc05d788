// What the tests of launches look at: each kernel writes what it was given.

struct Pair {
  int first;
  double second;
};

__global__ void scalars(double* out, bool a, signed char b, unsigned short c, int d, unsigned e, long long f,
                        unsigned long long g, float h, double i, unsigned short half, unsigned short bfloat16, Pair j) {
  const double values[] = {double(a), double(b), double(c), double(d),    double(e),        double(f),
                           double(g), double(h), i,         double(half), double(bfloat16), double(j.first),
                           j.second};
  for (int k = 0; k < 13; ++k) out[k] = values[k];
}

__global__ void last_of_shared(int* out, int bytes) {
  extern __shared__ int shared[];
  const int last = bytes / 4 - 1;
  if (threadIdx.x == 0) shared[last] = 7;
  __syncthreads();
  if (threadIdx.x == 0) *out = shared[last] + last;
}

__global__ void cluster_sizes(int* out) {
  unsigned size;
  asm volatile("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(size));
  out[blockIdx.x] = size;
}

__global__ void __launch_bounds__(128) at_most_128_threads(int* out) { out[threadIdx.x] = 1; }

extern "C" __global__ void plain(int* out) { *out = 3; }

__global__ void add_one(int* out) { *out += 1; }

__constant__ float weights[4];

namespace tables {
__device__ int steps[3];
}

__global__ void sum_of_constants(float* out) {
  *out = weights[0] + weights[1] + weights[2] + weights[3] + tables::steps[0] + tables::steps[1] + tables::steps[2];
}

struct View {
  short scale;
  const int* data;
  float shift;
};

__global__ void through_pointers(float* out, const int* middle, View view) {
  out[0] = middle[0];
  out[1] = view.data[1] * view.scale + view.shift;
}

__global__ void through_textures(float* out, cudaTextureObject_t line, cudaTextureObject_t image) {
  out[0] = tex1Dfetch<int>(line, 3);
  out[1] = tex2D<float>(image, 1.0f, 1.5f);  // between two columns, in the middle of a row
  const float far = tex2D<float>(image, 1e6f, 0.5f);
  out[2] = far;
}
