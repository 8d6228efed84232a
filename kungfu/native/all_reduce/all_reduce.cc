// The op in the graph. Its group is looked up on every call, so that a traced graph outlives its view.

#include <string>
#include <vector>

#include "arithmetic.h"
#include "group.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace {

namespace tf = tensorflow;

REGISTER_OP("KungfuAllReduce")
    .Input("order: resource")
    .Input("prescale: double")
    .Input("values: Ts")
    .Output("sums: Ts")
    .Attr("Ts: list({half, bfloat16, float, double, int32, int64}) >= 1")
    .Attr("group: int")
    .Attr("tag: string")
    .SetIsStateful()
    .SetIsDistributedCommunication()  // else a graph turns an unavailable peer into an internal error
    .SetShapeFn([](tf::shape_inference::InferenceContext* context) {
      tf::shape_inference::ShapeHandle scalar;
      TF_RETURN_IF_ERROR(context->WithRank(context->input(0), 0, &scalar));
      TF_RETURN_IF_ERROR(context->WithRank(context->input(1), 0, &scalar));
      for (int i = 0; i < context->num_outputs(); ++i) context->set_output(i, context->input(i + 2));
      return absl::OkStatus();
    })
    .Doc(R"doc(
The sum over peers of every tensor, as the left fold in rank order: ((x0 + x1) + x2) + ...

Without peers the op is the identity, prescaled.

order: Not touched; TensorFlow's control dependencies put the ops that share it in program order.
prescale: Multiplies the floating values of all tensors but the last, rounded to float32 for those that are no
  float64; 0 stands for zeros, whatever the values are.
group: The number under which the runtime registers the peers that the op reduces over.
tag: Names the message in errors; must be equal on all peers.
)doc");

kungfu::ElementType element_type(tf::DataType type) {
  switch (type) {
    case tf::DT_HALF:
      return kungfu::ElementType::kHalf;
    case tf::DT_BFLOAT16:
      return kungfu::ElementType::kBfloat16;
    case tf::DT_FLOAT:
      return kungfu::ElementType::kFloat;
    case tf::DT_DOUBLE:
      return kungfu::ElementType::kDouble;
    case tf::DT_INT32:
      return kungfu::ElementType::kInt32;
    default:
      return kungfu::ElementType::kInt64;
  }
}

// The code shows a reader of TensorFlow's error what kind it is; the runtime asks for the failure itself instead.
absl::Status to_status(const kungfu::Failure& failure) {
  const std::string text = kungfu::for_people("kungfu: " + failure.text);
  switch (failure.kind) {
    case kungfu::FailureKind::kPeerGone:
      return absl::UnavailableError(text);
    case kungfu::FailureKind::kLate:
      return absl::DeadlineExceededError(text);
    // This peer itself has left: nobody is at fault.
    case kungfu::FailureKind::kClosed:
      return absl::CancelledError(text);
    // Peers differ: a bug of the program or of ours.
    default:
      return absl::InternalError(text);
  }
}

constexpr int kFirstValue = 2;

class AllReduce final : public tf::OpKernel {
 public:
  explicit AllReduce(tf::OpKernelConstruction* construction) : tf::OpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("group", &group_));
    OP_REQUIRES_OK(construction, construction->GetAttr("tag", &tag_));
  }

  void Compute(tf::OpKernelContext* context) override {
    const tf::Tensor& prescale = context->input(1);
    OP_REQUIRES(context, prescale.dims() == 0, absl::InvalidArgumentError("kungfu: prescale must be a scalar"));
    const double scale = prescale.scalar<double>()();
    const std::shared_ptr<kungfu::Group> group = kungfu::find_group(group_);
    // No group and nothing to scale: the identity.
    if (group == nullptr && scale == 1.0) return forward(context);

    static thread_local std::vector<kungfu::TensorPart> parts;  // keeps its room from call to call
    parts.clear();
    OP_REQUIRES_OK(context, gather(context, scale, &parts));
    if (group == nullptr) return scale_alone(parts);  // a view of one peer
    const kungfu::MaybeFailure failure = group->all_reduce(tag_, &parts);
    if (!failure) return;
    kungfu::note_failure(group_, *failure);  // TensorFlow carries a code and a text only
    context->SetStatus(to_status(*failure));
  }

 private:
  static void forward(tf::OpKernelContext* context) {
    for (int i = 0; i < context->num_outputs(); ++i) context->set_output(i, context->input(kFirstValue + i));
  }

  static void scale_alone(const std::vector<kungfu::TensorPart>& parts) {
    const kungfu::ExactArithmetic exact;
    for (const kungfu::TensorPart& part : parts) {
      kungfu::copy_scaled(part.type, part.input, part.output, part.bytes, part.scale);
    }
  }

  // The tensors as parts sorted by type, each with an output to fill.
  static absl::Status gather(tf::OpKernelContext* context, double scale, std::vector<kungfu::TensorPart>* parts) {
    for (int type = 0; type < kungfu::kElementTypes; ++type) {
      for (int i = 0; i < context->num_outputs(); ++i) {
        const kungfu::ElementType own = element_type(context->input_dtype(kFirstValue + i));
        if (static_cast<int>(own) != type) continue;
        const tf::Tensor& input = context->input(kFirstValue + i);
        const char* values = static_cast<const char*>(input.data());
        const int64_t bytes = input.NumElements() * kungfu::element_bytes(own);
        const tf::TensorShape shape = input.shape();
        tf::Tensor* output = nullptr;  // the input's own buffer where nothing else reads it
        TF_RETURN_IF_ERROR(context->forward_input_or_allocate_output({kFirstValue + i}, i, shape, &output));
        const bool last = i == context->num_outputs() - 1;
        parts->push_back({own, last ? 1.0 : scale, values, static_cast<char*>(output->data()), bytes});
      }
    }
    return absl::OkStatus();
  }

  int64_t group_;
  std::string tag_;
};

REGISTER_KERNEL_BUILDER(Name("KungfuAllReduce").Device(tf::DEVICE_CPU), AllReduce);

}  // namespace
