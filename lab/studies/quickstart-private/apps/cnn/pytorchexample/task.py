# SPDX-License-Identifier: Apache-2.0
"""The model, its data and its training: plain PyTorch."""

import os

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, random_split


class Net(nn.Module):
    """The CNN of PyTorch's 60-minute introduction."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, 5)
        self.pool = nn.MaxPool2d(2, 2)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(16 * 5 * 5, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, 10)

    def forward(self, x):
        x = self.pool(functional.relu(self.conv1(x)))
        x = self.pool(functional.relu(self.conv2(x)))
        x = x.view(-1, 16 * 5 * 5)
        x = functional.relu(self.fc1(x))
        x = functional.relu(self.fc2(x))
        return self.fc3(x)


class Images(Dataset):
    """Images with labels, as dictionaries: pixels from -1 to 1."""

    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        image = torch.tensor(self.x[index]).permute(2, 0, 1) / 255
        return {"img": (image - 0.5) / 0.5, "label": int(self.y[index])}


def read(part):
    """The training or the test images of the file that IMAGES names."""
    arrays = np.load(os.environ["IMAGES"])
    return arrays[f"x_{part}"], arrays[f"y_{part}"]


def load_data(partition_id, num_partitions, batch_size):
    """The images of one partition: 80 % to train, 20 % to test."""
    x, y = read("train")
    mine = np.random.default_rng(0).permutation(len(x))[partition_id::num_partitions]
    whole = Images(x[mine], y[mine])
    count = int(0.8 * len(whole))
    split = [count, len(whole) - count]
    train, test = random_split(whole, split, torch.Generator().manual_seed(42))
    trainloader = DataLoader(train, batch_size=batch_size, shuffle=True)
    return trainloader, DataLoader(test, batch_size=batch_size)


def load_centralized_dataset():
    """The test images, which the server has."""
    return DataLoader(Images(*read("test")), batch_size=128)


def train(net, trainloader, epochs, lr, device):
    """Train the model on the training set."""
    net.to(device)
    criterion = nn.CrossEntropyLoss().to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    net.train()
    running_loss = 0.0
    for _ in range(epochs):
        for batch in trainloader:
            images, labels = batch["img"].to(device), batch["label"].to(device)
            optimizer.zero_grad()
            loss = criterion(net(images), labels)
            loss.backward()
            optimizer.step()
            running_loss += loss.item()
    return running_loss / (epochs * len(trainloader))


def test(net, testloader, device):
    """The loss and the accuracy on the test set."""
    net.to(device)
    criterion = nn.CrossEntropyLoss()
    correct, loss = 0, 0.0
    with torch.no_grad():
        for batch in testloader:
            images, labels = batch["img"].to(device), batch["label"].to(device)
            outputs = net(images)
            loss += criterion(outputs, labels).item()
            correct += (outputs.argmax(1) == labels).sum().item()
    return loss / len(testloader), correct / len(testloader.dataset)
