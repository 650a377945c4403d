"""FedGen's generator of features."""

from __future__ import annotations

import torch

from headwater.models.generator import Generator


def test_shapes_and_count() -> None:
    """3 numbers of noise and 4 classes, 5 wide: 7·5 + 5, norm 2·5, 5·2 + 2 for 2 features."""
    made = Generator(3, 4, 5, 2)
    assert sum(p.numel() for p in made.parameters()) == 40 + 10 + 12
    noise, drawn = made.draw(torch.tensor([0, 3, 3]))
    assert (noise.shape, drawn.shape) == ((3, 3), (3, 2))
    assert bool(((noise >= 0) & (noise < 1)).all())


def test_what_is_drawn_depends_on_class_and_noise_alone() -> None:
    torch.manual_seed(0)
    made = Generator(2, 3, 8, 4).eval()
    noise, y = torch.rand(2, 2), torch.tensor([1, 2])
    assert torch.equal(made(noise, y), made(noise, y))
    assert not torch.allclose(made(noise, y), made(noise, torch.tensor([2, 2]))[:2])
    assert not torch.allclose(made(noise, y), made(1 - noise, y))


def test_asks_only_for_classes_that_it_was_taught() -> None:
    torch.manual_seed(0)
    made = Generator(2, 4, 8, 4)
    assert set(made.wanted(200).tolist()) == {0, 1, 2, 3}
    made.held.copy_(torch.tensor([0.0, 1.0, 0.0, 1.0]))
    counts = torch.bincount(made.wanted(2000), minlength=4).tolist()
    assert counts[0] == counts[2] == 0
    assert abs(counts[1] - 1000) < 120  # alike: more than five standard deviations off would be a fault


def test_the_list_of_classes_is_part_of_the_model() -> None:
    assert "held" in Generator(2, 3, 4, 2).state_dict()
