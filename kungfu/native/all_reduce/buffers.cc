// The locations of variables in memory, for code that reads or overwrites all of them while the graph is not running.

#include <cstring>
#include <string>

#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace {

namespace tf = tensorflow;

REGISTER_OP("KungfuBuffers")
    .Input("handles: count * resource")
    .Output("values: Ts")
    .Output("table: int64")
    .Attr("Ts: list(type) >= 1")
    .Attr("count: int >= 1")
    .Attr("use: {'read', 'overwrite'}")
    .SetIsStateful()
    .SetShapeFn([](tf::shape_inference::InferenceContext* context) {
      for (int i = 0; i < context->num_outputs(); ++i) context->set_output(i, context->UnknownShape());
      return absl::OkStatus();
    })
    .Doc(R"doc(
The memory of variables: an address and a number of bytes for each.

handles: Variables on the CPU.
values: The variables' own buffers, not copies: the addresses are good for as long as these are held.
table: int64 [count, 2].
use: `overwrite` sees to it that no other tensor shares a buffer, so that who writes there changes the variable only.
)doc");

// A buffer with the same content and without other owners.
absl::Status own(tf::OpKernelContext* context, tf::Tensor* tensor) {
  if (tensor->RefCountIsOne()) return absl::OkStatus();
  tf::AllocatorAttributes attributes;
  attributes.set_on_host(true);
  tf::Tensor fresh;
  TF_RETURN_IF_ERROR(context->allocate_temp(tensor->dtype(), tensor->shape(), &fresh, attributes));
  const tf::StringPiece from = tensor->tensor_data();
  std::memcpy(const_cast<char*>(fresh.tensor_data().data()), from.data(), from.size());
  *tensor = fresh;
  return absl::OkStatus();
}

class Buffers final : public tf::OpKernel {
 public:
  explicit Buffers(tf::OpKernelConstruction* construction) : tf::OpKernel(construction) {
    std::string use;
    OP_REQUIRES_OK(construction, construction->GetAttr("use", &use));
    overwrite_ = use == "overwrite";
  }

  void Compute(tf::OpKernelContext* context) override {
    const int count = context->num_inputs();
    tf::Tensor* table = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(count, tf::TensorShape({count, 2}), &table));
    auto rows = table->matrix<int64_t>();
    for (int i = 0; i < count; ++i) {
      tf::core::RefCountPtr<tf::Var> variable;
      OP_REQUIRES_OK(context, tf::LookupResource(context, tf::HandleFromInput(context, i), &variable));
      tf::mutex_lock lock(*variable->mu());
      if (overwrite_) OP_REQUIRES_OK(context, own(context, variable->tensor()));
      const tf::StringPiece memory = variable->tensor()->tensor_data();
      rows(i, 0) = reinterpret_cast<int64_t>(memory.data());
      rows(i, 1) = static_cast<int64_t>(memory.size());
      context->set_output(i, *variable->tensor());
    }
  }

 private:
  bool overwrite_;
};

REGISTER_KERNEL_BUILDER(Name("KungfuBuffers").Device(tf::DEVICE_CPU), Buffers);

}  // namespace
