# SPDX-License-Identifier: Apache-2.0
"""Training with Lightning on points that are cut among ranks: torchrun --nproc-per-node 2 lightning_training.py

Lightning sees one device in each process; meshard makes the processes one run. Nothing in `configure_optimizers`, clipping or the loop changes."""
import lightning
import meshard
import torch
import torch.distributed as dist
from lightning.fabric.plugins.environments import LightningEnvironment
from lightning.pytorch.strategies import SingleDeviceStrategy


class Cases(torch.utils.data.Dataset):
    """Eight clouds of 300 points; each rank keeps its part of them."""

    def __init__(self, mesh):
        self.mesh = mesh

    def __len__(self):
        return 8

    def __getitem__(self, index):
        points = torch.rand(1, 300, 3, generator=torch.Generator().manual_seed(index))
        return meshard.distribute_tensor(points, self.mesh, [meshard.Shard(1)])


class Surrogate(lightning.LightningModule):
    def __init__(self, mesh):
        super().__init__()
        torch.manual_seed(0)
        self.model = meshard.models.Transolver(functional_dim=3, embedding_dim=3, out_dim=1, n_layers=2, n_hidden=32, n_head=4)
        meshard.replicate(self, mesh)

    def training_step(self, points, index):
        loss = torch.nn.functional.mse_loss(self.model(points, points), points.square().sum(-1, keepdim=True))
        self.log("loss", meshard.full_tensor(loss.detach()), on_epoch=True, prog_bar=True, batch_size=1)   # read by rank 0 alone, too
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), 1e-3)


def main():
    dist.init_process_group("gloo")
    mesh = meshard.init_device_mesh()
    cases = torch.utils.data.DataLoader(Cases(mesh), batch_size=None, shuffle=True, generator=torch.Generator().manual_seed(1))
    is_first = mesh.get_rank() == 0
    trainer = lightning.Trainer(strategy=SingleDeviceStrategy("cpu"), plugins=[LightningEnvironment()], max_epochs=2, gradient_clip_val=1.0, logger=False,
                                enable_checkpointing=is_first, enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(Surrogate(mesh), cases)
    print(f"rank {mesh.get_rank()}: loss {trainer.callback_metrics['loss'].item():.6f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
