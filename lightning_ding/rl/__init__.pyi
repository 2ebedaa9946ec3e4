from .actor_critic import (
    critic_error as critic_error,
    critic_loss as critic_loss,
    huber_critic_loss as huber_critic_loss,
    pessimistic_target as pessimistic_target,
    shifted_gaussian_kl as shifted_gaussian_kl,
    smoothed_action as smoothed_action,
    soft_actor_loss as soft_actor_loss,
    soft_target as soft_target,
    spread_bound as spread_bound,
    temperature_loss as temperature_loss,
)
from .distributional import (
    categorical_projection as categorical_projection,
    cross_entropy as cross_entropy,
    ensemble_quantile_huber as ensemble_quantile_huber,
    fraction_loss as fraction_loss,
    mean_return as mean_return,
    moved_support as moved_support,
    quantile_huber as quantile_huber,
    quantile_target as quantile_target,
    share_beyond_support as share_beyond_support,
    take_action_distribution as take_action_distribution,
    truncated_quantiles as truncated_quantiles,
    weighted_mean as weighted_mean,
)
from .distributions import (
    Categorical as Categorical,
    DiagonalGaussian as DiagonalGaussian,
    Distribution as Distribution,
    HybridDistribution as HybridDistribution,
    MultiCategorical as MultiCategorical,
    distribution_of as distribution_of,
    epsilon_greedy_distribution as epsilon_greedy_distribution,
    expectation as expectation,
    squashed_gaussian_log_prob as squashed_gaussian_log_prob,
    squashed_gaussian_sample as squashed_gaussian_sample,
)
from .dynamics import (
    gaussian_nll as gaussian_nll,
    hopper_terminated as hopper_terminated,
    inverted_pendulum_terminated as inverted_pendulum_terminated,
    never_terminated as never_terminated,
    softly_bounded as softly_bounded,
    walker2d_terminated as walker2d_terminated,
)
from .exploration import (
    discrete_counts as discrete_counts,
    epsilon_greedy as epsilon_greedy,
    random_actions as random_actions,
    random_legal_actions as random_legal_actions,
)
from .noise import (
    OrnsteinUhlenbeckNoise as OrnsteinUhlenbeckNoise,
    StateDependentNoise as StateDependentNoise,
    gaussian_noise as gaussian_noise,
)
from .novelty import (
    EpisodicMemory as EpisodicMemory,
    episodic_novelty as episodic_novelty,
    exploration_discounts as exploration_discounts,
    exploration_weights as exploration_weights,
    intrinsic_reward as intrinsic_reward,
)
from .off_policy import (
    VTrace as VTrace,
    acer_gradient as acer_gradient,
    retrace as retrace,
    vtrace as vtrace,
    within_trust_region as within_trust_region,
)
from .offline import (
    advantage_weight as advantage_weight,
    best_candidate_target as best_candidate_target,
    conservative_gap as conservative_gap,
    discrete_conservative_gap as discrete_conservative_gap,
    expectile_loss as expectile_loss,
    gaussian_log_prob as gaussian_log_prob,
    gradient_similarity as gradient_similarity,
    large_margin as large_margin,
    smoothed_cross_entropy as smoothed_cross_entropy,
    standard_normal_kl as standard_normal_kl,
)
from .planning import (
    Plan as Plan,
    elite_weights as elite_weights,
    first_action as first_action,
    moved_on as moved_on,
    mppi as mppi,
    weighted_moments as weighted_moments,
)
from .policy_gradients import (
    PPOPolicyLoss as PPOPolicyLoss,
    approx_kl as approx_kl,
    policy_gradient_loss as policy_gradient_loss,
    ppo_policy_loss as ppo_policy_loss,
    ppo_value_loss as ppo_value_loss,
    standardise as standardise,
)
from .recurrent import (
    sequence_priority as sequence_priority,
    sequence_targets as sequence_targets,
    value_rescale as value_rescale,
    value_unscale as value_unscale,
)
from .returns import discounted_return as discounted_return, gae as gae, lambda_return as lambda_return
from .running import (
    RunningMeanStd as RunningMeanStd,
    RunningReturns as RunningReturns,
    combine_moments as combine_moments,
    moments as moments,
)
from .sequences import Sequences as Sequences, time_major as time_major
from .soft import (
    expected_soft_value as expected_soft_value,
    gumbel_perturbed as gumbel_perturbed,
    munchausen_bonus as munchausen_bonus,
    soft_q_target as soft_q_target,
    soft_value as soft_value,
)
from .td import (
    TDLoss as TDLoss,
    double_q_target as double_q_target,
    masked as masked,
    n_step_return as n_step_return,
    q_target as q_target,
    take_action_value as take_action_value,
    td_error as td_error,
    td_loss as td_loss,
)
from .tensor_draws import (
    TensorDraws as TensorDraws,
    epsilon_greedy_tensor as epsilon_greedy_tensor,
    random_tensor_actions as random_tensor_actions,
)
from .trust_region import conjugate_gradient as conjugate_gradient, trust_region_length as trust_region_length
from .value_scales import rescale_output as rescale_output, symexp as symexp, symlog as symlog
from .world_models import (
    ReturnRange as ReturnRange,
    SequenceRows as SequenceRows,
    balanced_kl as balanced_kl,
    bootstrapped_returns as bootstrapped_returns,
    categorical_kl as categorical_kl,
    draw_index as draw_index,
    episode_rows as episode_rows,
    one_hot_of as one_hot_of,
    two_hot as two_hot,
    two_hot_bins as two_hot_bins,
    two_hot_loss as two_hot_loss,
    two_hot_mean as two_hot_mean,
    wide as wide,
    with_uniform as with_uniform,
)
