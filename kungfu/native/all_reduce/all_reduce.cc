// The all-reduce op in the graph. It looks up its group on every call, so that a traced graph outlives a view.

#include <string>
#include <vector>

#include "arithmetic.h"
#include "group.h"
#include "norms.h"
#include "tensor_type.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace {

namespace tf = tensorflow;

constexpr int kFirstValue = 4;
constexpr int kNorms = 2;  // the last outputs

REGISTER_OP("KungfuAllReduce")
    .Input("order: resource")
    .Input("prescale: double")
    .Input("wanted: bool")
    .Input("factor: double")
    .Input("values: Ts")
    .Output("sums: Ts")
    .Output("values_norm: double")
    .Output("sums_norm: double")
    .Attr("Ts: list({half, bfloat16, float, double, int32, int64}) >= 1")
    .Attr("group: int")
    .Attr("tag: string")
    .Attr("stands_for_norm: int = 0")
    .SetIsStateful()
    .SetIsDistributedCommunication()  // otherwise a graph reports an unavailable peer as an internal error
    .SetShapeFn([](tf::shape_inference::InferenceContext* context) {
      tf::shape_inference::ShapeHandle scalar;
      for (int i : {0, 1, 3}) TF_RETURN_IF_ERROR(context->WithRank(context->input(i), 0, &scalar));
      const int sums = context->num_outputs() - kNorms;
      for (int i = 0; i < sums; ++i) context->set_output(i, context->input(kFirstValue + i));
      for (int i = 0; i < kNorms; ++i) context->set_output(sums + i, context->Scalar());
      return absl::OkStatus();
    })
    .Doc(R"doc(
The sum over peers of every tensor, as the left fold in rank order: ((x0 + x1) + x2) + ...

Without peers the op is the identity, prescaled.

order: Not touched; TensorFlow's control dependencies put the ops that share it in program order.
prescale: Multiplies the floating values of all tensors but the last, rounded to float32 for those that are no
  float64; 0 stands for zeros, whatever the values are.
wanted: bool [2]: whether to take the squared norm of this peer's values, before they are scaled, and that of the sums;
  the last tensor does not count.
factor: Multiplies both norms.
values_norm, sums_norm: Minus infinity where it is not wanted; the values' norm is NaN where prescale is 0.
group: The number under which the runtime registers the peers that the op reduces over.
tag: Names the message in errors; must be equal on all peers.
stands_for_norm: An entry of the last tensor with these bits, if that is float32, becomes the norm of the values.
)doc");

// The code shows the kind of failure to readers of TensorFlow's error; the runtime reads the failure itself instead.
absl::Status to_status(const kungfu::Failure& failure) {
  const std::string text = kungfu::for_people("kungfu: " + failure.text);
  switch (failure.kind) {
    case kungfu::FailureKind::kPeerGone:
      return absl::UnavailableError(text);
    case kungfu::FailureKind::kLate:
      return absl::DeadlineExceededError(text);
    // This peer itself has left: no peer is at fault.
    case kungfu::FailureKind::kClosed:
      return absl::CancelledError(text);
    // Peers differ: a bug in the program or in kungfu.
    default:
      return absl::InternalError(text);
  }
}

class AllReduce final : public tf::OpKernel {
 public:
  explicit AllReduce(tf::OpKernelConstruction* construction) : tf::OpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("group", &group_));
    OP_REQUIRES_OK(construction, construction->GetAttr("tag", &tag_));
    int64_t bits = 0;
    OP_REQUIRES_OK(construction, construction->GetAttr("stands_for_norm", &bits));
    stands_for_norm_ = static_cast<uint32_t>(bits);
  }

  void Compute(tf::OpKernelContext* context) override {
    const tf::Tensor& prescale = context->input(1);
    OP_REQUIRES(context, prescale.dims() == 0, absl::InvalidArgumentError("kungfu: prescale must be a scalar"));
    const double scale = prescale.scalar<double>()();
    kungfu::Wanted wanted = {};
    OP_REQUIRES_OK(context, read_wanted(context, scale, &wanted));
    const std::shared_ptr<kungfu::Group> group = kungfu::find_group(group_);

    // Later calls reuse the memory of both.
    static thread_local std::vector<kungfu::TensorPart> parts;
    static thread_local kungfu::Norms norms;
    parts.clear();
    norms.begin(wanted, count(context) - 1);
    OP_REQUIRES_OK(context, gather(context, scale, group == nullptr, &parts));
    if (group == nullptr) {  // a view of one peer
      take_alone(parts, &norms);
    } else if (const kungfu::MaybeFailure failure = group->all_reduce(tag_, &parts, &norms)) {
      kungfu::note_failure(group_, *failure);  // TensorFlow passes on only a code and a text
      return context->SetStatus(to_status(*failure));
    }
    OP_REQUIRES_OK(context, give(context, count(context), norms.of_inputs()));
    OP_REQUIRES_OK(context, give(context, count(context) + 1, norms.of_sums()));
  }

 private:
  // The number of tensors.
  static int count(tf::OpKernelContext* context) { return context->num_outputs() - kNorms; }

  static absl::Status give(tf::OpKernelContext* context, int place, double norm) {
    tf::Tensor* given = nullptr;
    TF_RETURN_IF_ERROR(context->allocate_output(place, tf::TensorShape({}), &given));
    given->scalar<double>()() = norm;
    return absl::OkStatus();
  }

  absl::Status read_wanted(tf::OpKernelContext* context, double scale, kungfu::Wanted* wanted) const {
    const tf::Tensor &which = context->input(2), &factor = context->input(3);
    if (which.dims() != 1 || which.NumElements() != 2 || factor.dims() != 0) {
      return absl::InvalidArgumentError("kungfu: wanted must have two entries, and factor must be a scalar");
    }
    const auto norms = which.vec<bool>();
    *wanted = {norms(0), norms(1), factor.scalar<double>()(), scale == 0.0, stands_for_norm_};
    return absl::OkStatus();
  }

  static void take_alone(const std::vector<kungfu::TensorPart>& parts, kungfu::Norms* norms) {
    const kungfu::ExactArithmetic exact;
    for (const kungfu::TensorPart& part : parts) norms->take_alone(part);
  }

  // The tensors as parts, grouped by type and with the last tensor at the end, each with an output to fill.
  static absl::Status gather(tf::OpKernelContext* context, double scale, bool alone,
                             std::vector<kungfu::TensorPart>* parts) {
    const int last = count(context) - 1;
    const int last_type = static_cast<int>(kungfu::element_type(context->input_dtype(kFirstValue + last)));
    for (int turn = 1; turn <= kungfu::kElementTypes; ++turn) {
      const int type = (last_type + turn) % kungfu::kElementTypes;  // the last tensor's type comes last
      for (int i = 0; i <= last; ++i) {
        const kungfu::ElementType own = kungfu::element_type(context->input_dtype(kFirstValue + i));
        if (static_cast<int>(own) != type) continue;
        const tf::Tensor& input = context->input(kFirstValue + i);
        const char* values = static_cast<const char*>(input.data());
        const bool counts = i != last;
        char* output = nullptr;
        TF_RETURN_IF_ERROR(make_output(context, i, alone && counts && scale == 1.0, &output));
        const int64_t bytes = input.NumElements() * kungfu::element_bytes(own);
        parts->push_back({own, counts ? scale : 1.0, values, output, bytes, static_cast<size_t>(i), counts});
      }
    }
    return absl::OkStatus();
  }

  static absl::Status make_output(tf::OpKernelContext* context, int i, bool is_input, char** output) {
    const tf::Tensor& input = context->input(kFirstValue + i);
    if (is_input) {  // nothing is written to it
      context->set_output(i, input);
      *output = static_cast<char*>(input.data());
      return absl::OkStatus();
    }
    const tf::TensorShape shape = input.shape();
    tf::Tensor* made = nullptr;  // the input's own buffer if nothing else reads that buffer
    TF_RETURN_IF_ERROR(context->forward_input_or_allocate_output({kFirstValue + i}, i, shape, &made));
    *output = static_cast<char*>(made->data());
    return absl::OkStatus();
  }

  int64_t group_;
  std::string tag_;
  uint32_t stands_for_norm_;
};

REGISTER_KERNEL_BUILDER(Name("KungfuAllReduce").Device(tf::DEVICE_CPU), AllReduce);

}  // namespace
