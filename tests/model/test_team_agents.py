from __future__ import annotations

import pytest
import torch

from lightning_ding.model.teams.agents import AgentEncoder, AgentMLP, groups_of


@pytest.mark.parametrize("groups", [(0, 0, 0), (0, 1, 2), (1, 0, 1)])
def test_agents_of_a_group_have_the_same_function_and_others_another(groups: tuple[int, ...]) -> None:
    net = AgentMLP([4, 8, 2], groups, layer_norm=True)
    out = net(torch.randn(5, 1, 4).expand(5, 3, 4))
    for i in range(3):
        for j in range(3):
            assert torch.allclose(out[:, i], out[:, j], atol=1e-6) == (groups[i] == groups[j])


def test_each_agents_output_depends_on_its_own_input_only() -> None:
    net = AgentMLP([2, 8, 1], (0, 1, 1))
    x = torch.randn(6, 3, 2, requires_grad=True)
    net(x)[:, 1].sum().backward()
    assert x.grad is not None
    assert (x.grad[:, [0, 2]] == 0).all()
    assert (x.grad[:, 1] != 0).any()


def test_agents_that_share_weights_tell_themselves_apart_by_their_number() -> None:
    seen = torch.randn(5, 1, 4).expand(5, 3, 4)
    assert not torch.allclose(AgentEncoder(3, 4)(seen)[:, 0], AgentEncoder(3, 4)(seen)[:, 1])
    blind = AgentEncoder(3, 4, agent_id=False)(seen)
    assert torch.allclose(blind[:, 0], blind[:, 1])


def test_unrolling_equals_single_steps_with_a_reset_in_between() -> None:
    encoder = AgentEncoder(3, 4, hidden_sizes=[8], core={"type": "gru", "hidden_size": 5})
    seen, starts = torch.randn(6, 2, 3, 4), torch.zeros(6, 2, dtype=torch.bool)
    starts[3, 1] = True
    state = torch.randn(2, encoder.state_size)
    whole, last = encoder.unroll(seen, state, starts)
    for step in range(6):
        state = torch.where(starts[step][:, None], 0.0, state)
        one, state = encoder.unroll(seen[step][None], state)
        assert torch.allclose(one[0], whole[step], atol=1e-6)
    assert torch.allclose(state, last, atol=1e-6)


def test_groups_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match=r"model\.parameter_sharing"):
        groups_of(3, [0, 2, 2])
    with pytest.raises(ValueError, match=r"model\.parameter_sharing"):
        groups_of(3, [0, 1])
