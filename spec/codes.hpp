// The stable codes of every complaint. The table in spec/README.md explains each; a test holds the two together.
#pragma once

namespace ccks::spec {

struct Code {
  const char* text;
};

namespace code {
// The text itself.
inline constexpr Code kYamlSyntax{"CCKS001"};
inline constexpr Code kCannotRead{"CCKS002"};
inline constexpr Code kTooLarge{"CCKS003"};
inline constexpr Code kNotText{"CCKS004"};
inline constexpr Code kAlias{"CCKS005"};
inline constexpr Code kTag{"CCKS006"};
inline constexpr Code kDuplicateKey{"CCKS007"};
inline constexpr Code kUnknownKey{"CCKS008"};
inline constexpr Code kSecondDocument{"CCKS009"};
inline constexpr Code kWrongNode{"CCKS010"};
inline constexpr Code kMissingKey{"CCKS011"};
inline constexpr Code kWrongValue{"CCKS012"};
inline constexpr Code kVersion{"CCKS013"};
inline constexpr Code kBadName{"CCKS014"};
inline constexpr Code kDefinedTwice{"CCKS015"};
// Dims.
inline constexpr Code kDimSyntax{"CCKS020"};
inline constexpr Code kUnknownDim{"CCKS021"};
inline constexpr Code kDimValue{"CCKS022"};
inline constexpr Code kUnknownOverride{"CCKS023"};
inline constexpr Code kDimTooComplex{"CCKS024"};
inline constexpr Code kNotConstant{"CCKS025"};
// Tensors, names and views.
inline constexpr Code kBadShape{"CCKS030"};
inline constexpr Code kUnknownDtype{"CCKS031"};
inline constexpr Code kBadInit{"CCKS032"};
inline constexpr Code kWrongKind{"CCKS033"};
inline constexpr Code kVaryingShape{"CCKS034"};
inline constexpr Code kUnknownTensor{"CCKS040"};
inline constexpr Code kUsedBeforeWritten{"CCKS041"};
inline constexpr Code kViewSyntax{"CCKS042"};
inline constexpr Code kViewOutOfRange{"CCKS043"};
inline constexpr Code kBadView{"CCKS044"};
inline constexpr Code kReadOnly{"CCKS045"};
inline constexpr Code kNeverWritten{"CCKS046"};
inline constexpr Code kNeverRead{"CCKS047"};
inline constexpr Code kReadsWhatItWrites{"CCKS048"};
// Ops.
inline constexpr Code kUnknownOp{"CCKS050"};
inline constexpr Code kShapeMismatch{"CCKS051"};
inline constexpr Code kWrongRank{"CCKS052"};
inline constexpr Code kDtypeMismatch{"CCKS053"};
inline constexpr Code kBadAttribute{"CCKS054"};
inline constexpr Code kBadAxis{"CCKS055"};
inline constexpr Code kCountedRows{"CCKS056"};
// Element expressions.
inline constexpr Code kExprSyntax{"CCKS060"};
inline constexpr Code kExprName{"CCKS061"};
inline constexpr Code kExprFunction{"CCKS062"};
inline constexpr Code kExprType{"CCKS063"};
// Blocks and control.
inline constexpr Code kBadRepeat{"CCKS070"};
inline constexpr Code kBadSubstitution{"CCKS071"};
inline constexpr Code kTooManyOps{"CCKS072"};
inline constexpr Code kBadInclude{"CCKS073"};
inline constexpr Code kIncludeCycle{"CCKS074"};
inline constexpr Code kUnknownRoute{"CCKS075"};
inline constexpr Code kUnknownReport{"CCKS076"};
inline constexpr Code kBadCondition{"CCKS077"};
inline constexpr Code kInlineRefused{"CCKS078"};
inline constexpr Code kTooManyErrors{"CCKS079"};
}  // namespace code

}  // namespace ccks::spec
