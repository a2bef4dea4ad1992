// Kernels for the PTX interpreter, compiled with: nvcc -ptx -arch=sm_80 compiled.cu
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <math_constants.h>

__constant__ float taps[5] = {1.0f, 4.0f, 6.0f, 4.0f, 1.0f};
__device__ unsigned launches = 7;

extern "C" __global__ void saxpy(int n, float a, const float *x, float *y) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = a * x[i] + y[i];
}

extern "C" __global__ void histogram(const unsigned char *x, int n, unsigned *counts) {
  __shared__ unsigned mine[256];
  for (int i = threadIdx.x; i < 256; i += blockDim.x) mine[i] = 0;
  __syncthreads();
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    atomicAdd(&mine[x[i]], 1u);
  __syncthreads();
  for (int i = threadIdx.x; i < 256; i += blockDim.x) atomicAdd(&counts[i], mine[i]);
}

extern "C" __global__ void softmax_rows(const float *x, float *y, int n) {
  x += blockIdx.x * n;
  y += blockIdx.x * n;
  float top = -CUDART_INF_F, sum = 0;
  for (int i = threadIdx.x; i < n; i += 32) top = fmaxf(top, x[i]);
  for (int o = 16; o; o /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, o));
  for (int i = threadIdx.x; i < n; i += 32) sum += expf(x[i] - top);
  for (int o = 16; o; o /= 2) sum += __shfl_xor_sync(~0u, sum, o);
  for (int i = threadIdx.x; i < n; i += 32) y[i] = expf(x[i] - top) / sum;
}

extern "C" __global__ void sum_block(const float *x, int n, float *out) {
  __shared__ float part[32];
  float s = 0;
  for (int i = threadIdx.x; i < n; i += blockDim.x) s += x[i];
  for (int o = 16; o; o /= 2) s += __shfl_down_sync(~0u, s, o);
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = s;
  __syncthreads();
  if (threadIdx.x < 32) {
    s = threadIdx.x < blockDim.x / 32 ? part[threadIdx.x] : 0;
    for (int o = 16; o; o /= 2) s += __shfl_down_sync(~0u, s, o);
    if (threadIdx.x == 0) atomicAdd(out, s);
  }
}

extern "C" __global__ void matmul_tiles(const float *a, const float *b, float *c, int n) {
  __shared__ float left[16][16], right[16][17];
  int row = blockIdx.y * 16 + threadIdx.y, column = blockIdx.x * 16 + threadIdx.x;
  float total = 0;
  for (int k = 0; k < n; k += 16) {
    int x = k + threadIdx.x, y = k + threadIdx.y;
    left[threadIdx.y][threadIdx.x] = row < n && x < n ? a[row * n + x] : 0;
    right[threadIdx.y][threadIdx.x] = y < n && column < n ? b[y * n + column] : 0;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 16; i++) total += left[threadIdx.y][i] * right[i][threadIdx.x];
    __syncthreads();
  }
  if (row < n && column < n) c[row * n + column] = total;
}

extern "C" __global__ void transpose(const float4 *x, float *y, int n) {
  extern __shared__ float tile[];
  int j = threadIdx.x;
  float4 v = x[(blockIdx.y * 32 + threadIdx.y) * (n / 4) + blockIdx.x * 8 + j];
  float *at = tile + threadIdx.y * 33 + 4 * j;
  at[0] = v.x; at[1] = v.y; at[2] = v.z; at[3] = v.w;
  __syncthreads();
  for (int k = 0; k < 4; k++)
    y[(blockIdx.x * 32 + threadIdx.y) * n + blockIdx.y * 32 + 4 * j + k] =
        tile[(4 * j + k) * 33 + threadIdx.y];
}

extern "C" __global__ void gelu_bf16(const __nv_bfloat16 *x, __nv_bfloat16 *y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  float v = __bfloat162float(x[i]);
  y[i] = __float2bfloat16(0.5f * v * (1 + tanhf(0.7978845608f * (v + 0.044715f * v * v * v))));
}

extern "C" __global__ void half_pairs(const __half2 *x, const __half2 *y, __half2 *z, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) z[i] = __hfma2(x[i], y[i], __hmax2(x[i], __float2half2_rn(0.25f)));
}

extern "C" __global__ void mathematics(const float *x, float *y, double *z, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  float v = x[i];
  y[i] = sinf(v) + logf(fabsf(v) + 1) + powf(fabsf(v) + 0.1f, 1.5f) + erff(v) + rsqrtf(v * v + 1);
  z[i] = exp((double)v) / (1.0 + (double)v * v) + sqrt((double)v * v + 2);
}

extern "C" __global__ void integers(const int *x, const int *y, long long *z, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  int a = x[i], b = y[i];
  long long r = 0;
  switch (a & 7) {
    case 0: r = a / 7 + a % 7; break;
    case 1: r = (long long)a * b; break;
    case 2: r = __umulhi(a, b); break;
    case 3: r = __popc(a) + __clz(b) * 100 + __ffs(a) * 10000; break;
    case 4: r = b ? (long long)a / b : 5; break;
    case 5: r = (unsigned)a % 1000u; break;
    case 6: r = __funnelshift_l(a, b, 5) ^ __brev(b); break;
    default: r = min(a, b) - (long long)max(a, b);
  }
  z[i] = r;
}

extern "C" __global__ void local_sort(const int *x, int *y, int n) {
  int keys[16], i = blockIdx.x * blockDim.x + threadIdx.x;
  for (int k = 0; k < n; k++) keys[k] = x[i * n + k];
  for (int k = 1; k < n; k++)
    for (int j = k; j > 0 && keys[j - 1] > keys[j]; j--) {
      int t = keys[j];
      keys[j] = keys[j - 1];
      keys[j - 1] = t;
    }
  for (int k = 0; k < n; k++) y[i * n + k] = keys[k];
}

extern "C" __global__ void blur(const float *x, float *y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  float s = 0;
  for (int k = 0; k < 5; k++) {
    int at = i + k - 2;
    if (at >= 0 && at < n) s += taps[k] * x[at];
  }
  if (i < n) y[i] = s;
  if (i == 0) atomicMax(&launches, 9u);
}

extern "C" __global__ void warp_votes(const int *x, unsigned *y) {
  int v = x[threadIdx.x];
  unsigned b = __ballot_sync(~0u, v > 0);
  if (v > 0) b += __popc(__activemask()) + __shfl_sync(b, b, __ffs(b) - 1);
  b += __any_sync(~0u, v == 3) * 1000 + __reduce_add_sync(~0u, v) + __match_any_sync(~0u, v & 3) % 7;
  y[threadIdx.x] = b;
}

extern "C" __global__ void float_minimum(const float *x, int n, float *least) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  int *at = (int *)least, old = *at, seen;
  do {
    seen = old;
    if (__int_as_float(seen) <= x[i]) return;
    old = atomicCAS(at, seen, __float_as_int(x[i]));
  } while (old != seen);
}

struct Scaling { float scale; int shift; short parts[6]; };

extern "C" __global__ void by_value(Scaling how, const int *x, float *y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = how.scale * (x[i] >> how.shift) + how.parts[i % 6];
}

extern "C" __global__ void copy_pipeline(const float *x, float *y, int n) {
  __shared__ __align__(16) float buffer[2][128];
  unsigned at = (unsigned)__cvta_generic_to_shared(&buffer[0][threadIdx.x * 4]);
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(x + threadIdx.x * 4));
  asm volatile("cp.async.commit_group;");
  for (int k = 0; k < n; k++) {
    if (k + 1 < n)
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at + (k + 1) % 2 * 512),
                   "l"(x + (k + 1) * 128 + threadIdx.x * 4));
    asm volatile("cp.async.commit_group;\ncp.async.wait_group 1;" ::: "memory");
    __syncthreads();
    for (int j = 0; j < 4; j++)
      y[k * 128 + threadIdx.x * 4 + j] = 2 * buffer[k % 2][127 - threadIdx.x * 4 - j];
    __syncthreads();
  }
}
