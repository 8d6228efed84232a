// The op in the graph: a whole program of bytecode as one node, which updates the folds' variables in place.

#include <mutex>
#include <string>
#include <vector>

#include "../policy/bytecode.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace {

namespace tf = tensorflow;

REGISTER_OP("KungfuEvaluate")
    .Input("states: count * resource")
    .Input("values: Ts")
    .Output("results: Rs")
    .Attr("count: int >= 0")
    .Attr("Ts: list({float, int64, bool}) >= 0")
    .Attr("Rs: list({float, int64, bool}) >= 0")
    .Attr("bytecode: string")
    .SetIsStateful()
    .SetShapeFn([](tf::shape_inference::InferenceContext* context) {
      for (int i = 0; i < context->num_outputs(); ++i) {
        context->set_output(i, context->Vector(tf::shape_inference::InferenceContext::kUnknownDim));
      }
      return absl::OkStatus();
    })
    .Doc(R"doc(
Carries out bytecode; see bytecode.h. All that it writes it writes at its end.

states: Variables that it reads, and moves on where the bytecode says what is kept.
values: Scalars and vectors that the bytecode takes.
results: Vectors; a scalar is a vector of one entry.
)doc");

// Calls `use` with an entry of this type.
template <typename Use>
void for_type(tf::DataType type, Use use) {
  if (type == tf::DT_FLOAT) return use(float());
  if (type == tf::DT_INT64) return use(int64_t());
  use(bool());
}

void read(const tf::Tensor& tensor, kungfu::Value* value) {
  tensor.dims() == 0 ? value->become_scalar() : value->become_vector(tensor.NumElements());
  for_type(tensor.dtype(), [&](auto entry) {
    const auto entries = tensor.flat<decltype(entry)>();
    for (int64_t i = 0; i < entries.size(); ++i) value->put(i, entries(i));
  });
}

void write(const kungfu::Value& value, tf::Tensor* tensor) {
  for_type(tensor->dtype(), [&](auto entry) {
    auto entries = tensor->flat<decltype(entry)>();
    for (int64_t i = 0; i < entries.size(); ++i) entries(i) = value.at<decltype(entry)>(i);
  });
}

class Evaluate final : public tf::OpKernel {
 public:
  explicit Evaluate(tf::OpKernelConstruction* construction) : tf::OpKernel(construction) {
    std::string text;
    OP_REQUIRES_OK(construction, construction->GetAttr("bytecode", &text));
    // Refused when the graph is built, not at the first step.
    const std::string wrong = bytecode_.parse(text);
    OP_REQUIRES(construction, wrong.empty(), absl::InvalidArgumentError(wrong));
    const size_t inputs = bytecode_.states().size() + bytecode_.inputs().size();
    OP_REQUIRES(construction, inputs == static_cast<size_t>(construction->num_inputs()),
                absl::InvalidArgumentError("kungfu: bytecode and its op differ in what they take"));
    OP_REQUIRES(construction, bytecode_.results().size() == static_cast<size_t>(construction->num_outputs()),
                absl::InvalidArgumentError("kungfu: bytecode and its op differ in what they give"));
  }

  // Runs in the thread that reaches the node: waking another thread would take longer than most policies.
  bool IsExpensive() override { return false; }

  void Compute(tf::OpKernelContext* context) override {
    const std::lock_guard<std::mutex> held(one_run_);
    std::vector<tf::core::RefCountPtr<tf::Var>> variables(bytecode_.states().size());
    for (size_t i = 0; i < variables.size(); ++i) {
      OP_REQUIRES_OK(context, tf::LookupResource(context, tf::HandleFromInput(context, i), &variables[i]));
      const tf::tf_shared_lock lock(*variables[i]->mu());
      read(*variables[i]->tensor(), &bytecode_.value(bytecode_.states()[i]));
    }
    for (size_t i = 0; i < bytecode_.inputs().size(); ++i) {
      read(context->input(variables.size() + i), &bytecode_.value(bytecode_.inputs()[i]));
    }
    bytecode_.run();
    // The results come first: if memory runs out, the states stay unchanged.
    OP_REQUIRES_OK(context, give(context));
    OP_REQUIRES_OK(context, keep(context, variables));
  }

 private:
  absl::Status give(tf::OpKernelContext* context) {
    for (int i = 0; i < context->num_outputs(); ++i) {
      const kungfu::Value& value = bytecode_.value(bytecode_.results()[i]);
      tf::Tensor* result = nullptr;
      TF_RETURN_IF_ERROR(context->allocate_output(i, {static_cast<int64_t>(value.size())}, &result));
      write(value, result);
    }
    return absl::OkStatus();
  }

  // Written to new memory: a reader of the variable may still use the old memory.
  absl::Status keep(tf::OpKernelContext* context, const std::vector<tf::core::RefCountPtr<tf::Var>>& variables) {
    for (size_t i = 0; i < bytecode_.kept().size(); ++i) {
      const tf::mutex_lock lock(*variables[i]->mu());
      tf::Tensor* const old = variables[i]->tensor();
      tf::Tensor fresh;
      TF_RETURN_IF_ERROR(context->allocate_temp(old->dtype(), old->shape(), &fresh));
      write(bytecode_.value(bytecode_.kept()[i]), &fresh);
      *old = fresh;
    }
    return absl::OkStatus();
  }

  std::mutex one_run_;  // the registers belong to this kernel, and two steps may run at once
  kungfu::Bytecode bytecode_;
};

REGISTER_KERNEL_BUILDER(Name("KungfuEvaluate").Device(tf::DEVICE_CPU), Evaluate);

}  // namespace
