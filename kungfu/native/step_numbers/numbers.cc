// The op in the graph that gathers numbers for the host: dozens of scalars in one node.

#include <vector>

#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace {

namespace tf = tensorflow;

REGISTER_OP("KungfuNumbers")
    .Input("variables: count * resource")
    .Input("values: Ts")
    .Output("row: double")
    .Attr("count: int >= 0")
    .Attr("Ts: list({double, float, int64, int32, bool}) >= 0")
    .Attr("order: list(int)")
    .SetIsStateful()
    .SetShapeFn([](tf::shape_inference::InferenceContext* context) {
      context->set_output(0, context->Vector(tf::shape_inference::InferenceContext::kUnknownDim));
      return absl::OkStatus();
    })
    .Doc(R"doc(
All numbers of its inputs, one input after the other.

variables: What they hold is read here, so that no other node has to.
values: Scalars and vectors.
order: Which input comes when; the variables count before the values.
row: Whole numbers up to 2 ** 53 stay whole; true is 1.
)doc");

template <typename T>
double* put(const tf::Tensor& tensor, double* to) {
  const auto entries = tensor.flat<T>();
  for (int64_t i = 0; i < entries.size(); ++i) *to++ = static_cast<double>(entries(i));
  return to;
}

// Writes the tensor's numbers to `to`. Returns the address for the next number, or null for a type that is not numeric.
double* put_any(const tf::Tensor& tensor, double* to) {
  switch (tensor.dtype()) {
    case tf::DT_DOUBLE: return put<double>(tensor, to);
    case tf::DT_FLOAT: return put<float>(tensor, to);
    case tf::DT_INT64: return put<int64_t>(tensor, to);
    case tf::DT_INT32: return put<int32_t>(tensor, to);
    case tf::DT_BOOL: return put<bool>(tensor, to);
    default: return nullptr;
  }
}

class Numbers final : public tf::OpKernel {
 public:
  explicit Numbers(tf::OpKernelConstruction* construction) : tf::OpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("order", &order_));
    OP_REQUIRES_OK(construction, construction->GetAttr("count", &variables_));
    OP_REQUIRES(construction, static_cast<int>(order_.size()) == construction->num_inputs(),
                absl::InvalidArgumentError("kungfu: an order needs a place for every input"));
    for (const int input : order_) {
      OP_REQUIRES(construction, input >= 0 && input < construction->num_inputs(),
                  absl::InvalidArgumentError("kungfu: an order names an input that is not there"));
    }
  }

  // Runs in the thread that reaches the node: waking another thread would take longer than gathering all numbers.
  bool IsExpensive() override { return false; }

  void Compute(tf::OpKernelContext* context) override {
    // Two passes over the inputs: the row is allocated once its length is known.
    std::vector<tf::Tensor> inputs(order_.size());
    int64_t numbers = 0;
    for (size_t i = 0; i < order_.size(); ++i) {
      OP_REQUIRES_OK(context, read(context, order_[i], &inputs[i]));
      numbers += inputs[i].NumElements();
    }
    tf::Tensor* row = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, {numbers}, &row));
    double* to = row->flat<double>().data();
    for (const tf::Tensor& input : inputs) {
      to = put_any(input, to);
      OP_REQUIRES(context, to != nullptr, absl::InvalidArgumentError("kungfu: a variable of this type is no number"));
    }
  }

 private:
  // Shares the memory: a simultaneous assignment writes to other memory, or is ordered after this node.
  absl::Status read(tf::OpKernelContext* context, int input, tf::Tensor* tensor) const {
    if (input >= variables_) {  // a value of the graph, not a variable
      *tensor = context->input(input);
      return absl::OkStatus();
    }
    tf::core::RefCountPtr<tf::Var> variable;
    TF_RETURN_IF_ERROR(tf::LookupResource(context, tf::HandleFromInput(context, input), &variable));
    const tf::tf_shared_lock lock(*variable->mu());
    *tensor = *variable->tensor();
    return absl::OkStatus();
  }

  std::vector<int> order_;
  int variables_;
};

REGISTER_KERNEL_BUILDER(Name("KungfuNumbers").Device(tf::DEVICE_CPU), Numbers);

}  // namespace
