"""The rule book: every rule, in the order of its code, and the judgement of a trace by it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from ..events import Location
from ..findings import Finding
from ..trace import Trace
from .accumulation import AccumulationNotDivided, AllReduceEachMicroBatch, GradientsClearedBeforeStep
from .applying import AssignedOverShards, FullStateWithoutBroadcast, LenientLoadUnchecked
from .asynchronous import (
    AsyncSaveNotAwaited,
    AsyncSaveSharesGroup,
    AsyncSavesOverlap,
    MainGuardMissing,
    StagerBuiltInLoop,
    StagingNotAwaitedBeforeStep,
)
from .base import Rule
from .data import (
    DataDividedByLocalRank,
    EpochNeverSet,
    SameDataOnEveryRank,
    SameDropoutOnEveryRank,
    SamplerSeedsDiffer,
    SamplerUsesGlobalRank,
    UnequalBatchesPerRank,
)
from .durability import PublishedCheckpointOverwritten, RetentionBeforeDurable
from .export import FsdpStateChangedByReading, FullStateOnEveryRank, UnsafeUnpickling
from .forward import ForwardIsBypassed, SubmoduleBeforeRoot
from .initialisation import (
    BuffersLeftUninitialised,
    InitialisationMissesParameters,
    MaterialisedNeverInitialised,
    MetaNeverMaterialised,
    RanksStartDifferent,
)
from .launch import (
    CpuBackendMissing,
    DeviceNotSet,
    GroupNeverDestroyed,
    HardCodedMeshSize,
    RankDivergentDecision,
    RankGuardedCollective,
)
from .layout import (
    AttachedAfterSharding,
    CompiledWholeAfterSharding,
    FullModelBeforeSharding,
    MeshesFromDifferentRoots,
    ShardedModelDeepCopied,
    TensorParallelAfterSharding,
    WrapperApiOnSharded,
)
from .loading import (
    CheckpointExceptionNotCaught,
    CheckpointWithoutLocation,
    IncompleteCheckpointChosen,
    LoadedButNotApplied,
    LoadedIntoNothing,
    LoadedValueNotReadBack,
    OptimizerLoadedLazily,
    RankKeysBlockResharding,
    SavedKeysNotRequested,
)
from .loop import (
    ClippingByLocalNorm,
    ClippingOverMixedMeshes,
    GradientSyncLeftOff,
    LocalTokenMean,
    LossReducedBeforeBackward,
    PartialTensorRead,
)
from .numbering import OptimizerStateByIndex
from .numbers import CastAfterSharding, LowPrecisionMasters, ReductionInLowPrecision
from .omissions import DataPositionNotSaved, RngNotSaved, SchedulerNotSaved, StepNotSaved
from .optimizer import OptimizerBeforeSharding, OptimizerOverUnshardedParameters
from .running import BuffersDifferAcrossRanks, PrecisionLostOnLoad, RanksDiverge, UpdatesNothing
from .saving import (
    FullStateThroughDcp,
    GroupMissesRanks,
    KeyedByLocalRank,
    LocalShardsSaved,
    PerRankStateUnderOneKey,
    StateTakenBetweenBackwardAndStep,
    TorchSaveOfShards,
    WrapperPrefixInKeys,
)
from .sharding import (
    CheckpointWrapperAfterSharding,
    ContainerSharded,
    HybridMeshOrder,
    IgnoredParamsNotReduced,
    PolicyDiffersBetweenGroups,
    RootNotSharded,
    RootOnlySharded,
    ShardedTopDown,
)
from .ties import TieLost, TieSplitAcrossGroups
from .versions import DeprecatedPath, NewerThanPinnedTorch, NoSuchApi

RULES: tuple[Rule, ...] = (
    DeviceNotSet(),
    RankGuardedCollective(),
    RankDivergentDecision(),
    CpuBackendMissing(),
    GroupNeverDestroyed(),
    RanksDiverge(),
    RootNotSharded(),
    RootOnlySharded(),
    ShardedTopDown(),
    AttachedAfterSharding(),
    CastAfterSharding(),
    LowPrecisionMasters(),
    PolicyDiffersBetweenGroups(),
    HybridMeshOrder(),
    HardCodedMeshSize(),
    ContainerSharded(),
    TensorParallelAfterSharding(),
    WrapperApiOnSharded(),
    CompiledWholeAfterSharding(),
    CheckpointWrapperAfterSharding(),
    MeshesFromDifferentRoots(),
    IgnoredParamsNotReduced(),
    ShardedModelDeepCopied(),
    FullModelBeforeSharding(),
    MetaNeverMaterialised(),
    MaterialisedNeverInitialised(),
    BuffersLeftUninitialised(),
    InitialisationMissesParameters(),
    TieLost(),
    TieSplitAcrossGroups(),
    RanksStartDifferent(),
    OptimizerBeforeSharding(),
    OptimizerOverUnshardedParameters(),
    ForwardIsBypassed(),
    SubmoduleBeforeRoot(),
    GradientSyncLeftOff(),
    PartialTensorRead(),
    ClippingByLocalNorm(),
    ClippingOverMixedMeshes(),
    LossReducedBeforeBackward(),
    LocalTokenMean(),
    AccumulationNotDivided(),
    ReductionInLowPrecision(),
    AllReduceEachMicroBatch(),
    UpdatesNothing(),
    GradientsClearedBeforeStep(),
    SameDataOnEveryRank(),
    SamplerUsesGlobalRank(),
    EpochNeverSet(),
    UnequalBatchesPerRank(),
    SameDropoutOnEveryRank(),
    BuffersDifferAcrossRanks(),
    SamplerSeedsDiffer(),
    DataDividedByLocalRank(),
    TorchSaveOfShards(),
    FullStateThroughDcp(),
    LocalShardsSaved(),
    PerRankStateUnderOneKey(),
    SchedulerNotSaved(),
    DataPositionNotSaved(),
    RngNotSaved(),
    StepNotSaved(),
    PublishedCheckpointOverwritten(),
    RetentionBeforeDurable(),
    GroupMissesRanks(),
    StateTakenBetweenBackwardAndStep(),
    WrapperPrefixInKeys(),
    OptimizerStateByIndex(),
    KeyedByLocalRank(),
    OptimizerLoadedLazily(),
    LoadedButNotApplied(),
    LoadedValueNotReadBack(),
    SavedKeysNotRequested(),
    LenientLoadUnchecked(),
    IncompleteCheckpointChosen(),
    CheckpointExceptionNotCaught(),
    FullStateWithoutBroadcast(),
    AssignedOverShards(),
    RankKeysBlockResharding(),
    PrecisionLostOnLoad(),
    LoadedIntoNothing(),
    CheckpointWithoutLocation(),
    AsyncSaveNotAwaited(),
    AsyncSavesOverlap(),
    AsyncSaveSharesGroup(),
    MainGuardMissing(),
    StagerBuiltInLoop(),
    StagingNotAwaitedBeforeStep(),
    FullStateOnEveryRank(),
    NewerThanPinnedTorch(),
    UnsafeUnpickling(),
    FsdpStateChangedByReading(),
    NoSuchApi(),
    DeprecatedPath(),
)


def judge(traces: Iterable[Trace], rules: Iterable[Rule] = RULES) -> list[Finding]:
    """All that the rules find in the traces of one program, each finding once, in the order of file and line.

    The same finding on several ranks (probe), or on both walks of a loop's body (reader), is one finding.
    """
    found: dict[tuple[str, Location], Finding] = {}
    rules = tuple(rules)
    for trace in traces:
        for rule in rules:
            if trace.origin not in rule.seen_by:
                continue
            for finding in rule.check(trace):
                key = (finding.code, finding.at)
                if (known := found.get(key)) is None:
                    found[key] = finding
                else:
                    ranks = tuple(sorted({*known.ranks, *finding.ranks}))
                    found[key] = dataclasses.replace(known, ranks=ranks)
    return sorted(found.values(), key=lambda f: (f.at.file, f.at.line, f.at.column, f.code))
