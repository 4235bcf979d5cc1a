"""Random crops and mirrored images, for a whole batch at once, on the device that holds the images."""

import torch
import torch.nn.functional as F
from torch import Tensor


def cut(images: Tensor, index: Tensor, shift: Tensor, flip: Tensor, padding: int) -> Tensor:
    """Surround each chosen image with `padding` black pixels, cut out its size at `shift`, and mirror some.

    Args:
        images: all images, (images, height, width, colours).
        index: which to take, (batch,).
        shift: rows and columns of the cut, 0 to 2 * padding, (batch, 2).
        flip: which to mirror, (batch,).
        padding: in pixels.

    Returns:
        (batch, height, width, colours), of the images' dtype.
    """
    _, height, width, colours = images.shape
    across = torch.arange(width, device=images.device)
    rows = torch.arange(height, device=images.device) + (shift[:, :1].long() - padding)
    columns = torch.where(flip[:, None], width - 1 - across, across) + (shift[:, 1:].long() - padding)
    inside_rows, inside_columns = (rows >= 0) & (rows < height), (columns >= 0) & (columns < width)
    lines = index.long()[:, None] * height + rows.clamp(0, height - 1)
    pixels = lines[:, :, None] * width + columns.clamp(0, width - 1)[:, None, :]
    inside = (inside_rows[:, :, None] & inside_columns[:, None, :]).unsqueeze(-1)
    return images.view(-1, colours)[pixels] * inside


def cut_and_resize(images: Tensor, index: Tensor, window: Tensor, flip: Tensor, size: int) -> Tensor:
    """Cut a window out of each chosen image, resize it to `size` pixels a side (bilinear), and mirror some.

    Args:
        images: all images, (images, height, width, colours).
        index: which to take, (batch,).
        window: top, left, height, width as fractions of the image, (batch, 4).
        flip: which to mirror, (batch,).
        size: pixels on a side.

    Returns:
        (batch, size, size, colours), float32 on the scale of the images.
    """
    top, left, height, width = window.unbind(1)
    centres = (torch.arange(size, device=images.device) + 0.5) / size
    across = torch.where(flip[:, None], 1 - centres, centres)
    x = (left[:, None] + across * width[:, None]) * 2 - 1
    y = (top[:, None] + centres * height[:, None]) * 2 - 1
    grid = torch.stack((x[:, None, :].expand(-1, size, -1), y[:, :, None].expand(-1, -1, size)), -1)
    chosen = images[index.long()].permute(0, 3, 1, 2).float()
    return F.grid_sample(chosen, grid, padding_mode="border", align_corners=False).permute(0, 2, 3, 1)


def normalise(pixels: Tensor, scale: Tensor, offset: Tensor) -> Tensor:
    """(batch, height, width, colours) to float32 (batch, colours, height, width) in channels-last memory format."""
    return (pixels * scale + offset).permute(0, 3, 1, 2)


def constants(
    mean: tuple[float, float, float], std: tuple[float, float, float], device: torch.device
) -> tuple[Tensor, Tensor]:
    """The factor and summand that take a pixel of 0 to 255 to (pixel / 255 - mean) / std."""
    scale = torch.tensor([1 / (255 * s) for s in std], dtype=torch.float32, device=device)
    offset = torch.tensor([-m / s for m, s in zip(mean, std, strict=True)], dtype=torch.float32, device=device)
    return scale, offset
