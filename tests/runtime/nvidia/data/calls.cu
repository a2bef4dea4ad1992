// A kernel that calls what another file holds: linked from two relocatable cubins.
extern __device__ int tripled(int);
extern __device__ int totals[4];

extern "C" __global__ void calls(int *out) {
  out[0] = tripled(out[1]);
  totals[2] = out[0];
}
