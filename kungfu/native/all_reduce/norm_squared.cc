// The op that computes a squared norm in a separate pass, if the norm cannot be computed while copying: the same sums,
// and so the same bits, with any number of threads.

#include <algorithm>
#include <vector>

#include "arithmetic.h"
#include "sum_of_squares.h"
#include "tensor_type.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace {

namespace tf = tensorflow;

REGISTER_OP("KungfuNormSquared")
    .Input("values: Ts")
    .Output("norm: double")
    .Attr("Ts: list({half, bfloat16, float, double, int32, int64}) >= 1")
    .SetShapeFn([](tf::shape_inference::InferenceContext* context) {
      context->set_output(0, context->Scalar());
      return absl::OkStatus();
    })
    .Doc(R"doc(
The sum of the squares of all entries of all tensors; sum_of_squares.h says in which order they are added.
)doc");

// The approximate cost of a block in processor cycles, by which the scheduler distributes blocks.
constexpr int64_t kCyclesPerBlock = 256;

int64_t blocks_of(const tf::Tensor& tensor) {
  return (tensor.NumElements() + kungfu::kSquaresBlock - 1) / kungfu::kSquaresBlock;
}

class NormSquared final : public tf::OpKernel {
 public:
  explicit NormSquared(tf::OpKernelConstruction* construction) : tf::OpKernel(construction) {}

  void Compute(tf::OpKernelContext* context) override {
    double total = 0.0;
    for (int i = 0; i < context->num_inputs(); ++i) total += squares_of(context, context->input(i));
    tf::Tensor* norm = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, tf::TensorShape({}), &norm));
    norm->scalar<double>()() = total;
  }

 private:
  static double squares_of(tf::OpKernelContext* context, const tf::Tensor& tensor) {
    static thread_local std::vector<double> room;  // reused by later calls
    room.assign(blocks_of(tensor), 0.0);
    double* const sums = room.data();
    const kungfu::ElementType type = kungfu::element_type(tensor.dtype());
    const char* const values = static_cast<const char*>(tensor.data());
    const auto sum_blocks = [&](int64_t begin, int64_t end) {
      const kungfu::ExactArithmetic exact;
      for (int64_t block = begin; block < end; ++block) {
        const int64_t first = block * kungfu::kSquaresBlock;
        const int64_t count = std::min(kungfu::kSquaresBlock, tensor.NumElements() - first);
        sums[block] = kungfu::sum_of_block(type, values + first * kungfu::element_bytes(type), count);
      }
    };
    const int64_t blocks = static_cast<int64_t>(room.size());
    context->device()->tensorflow_cpu_worker_threads()->workers->ParallelFor(blocks, kCyclesPerBlock, sum_blocks);
    kungfu::SumOfBlocks total;
    for (int64_t block = 0; block < blocks; ++block) total.add(sums[block]);
    return total.sum();
  }
};

REGISTER_KERNEL_BUILDER(Name("KungfuNormSquared").Device(tf::DEVICE_CPU), NormSquared);

}  // namespace
